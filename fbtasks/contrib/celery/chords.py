"""Chords: counts the parts of a header that have ended, and sends the body."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.canvas import maybe_signature
from celery.exceptions import ChordError
from celery.result import GroupResult, allow_join_result

from fbtasks.contrib.celery.results import StoreAccess
from fbtasks.contrib.celery.store import chords
from fbtasks.contrib.celery.store.chords import Complete, Part
from fbtasks.contrib.celery.store.names import key, shown

logger = logging.getLogger("fbtasks.celery")


def shape_of(results: Iterable[Any]) -> bytes | None:
    """Returns the ids of a header's results, nested as its groups are; None when none of them is a group."""
    if type(results) not in (list, tuple):  # Celery's list over a generator: its tasks are sent as it makes them
        return None
    if not any(isinstance(result, GroupResult) for result in results):
        return None
    return json.dumps(_ids(results)).encode()


def _ids(results: Iterable[Any]) -> list[Any]:
    return [_ids(result.results or ()) if isinstance(result, GroupResult) else result.id for result in results]


class Chord:
    """One chord, by the id of its header; kept for *lifetime* seconds after its last part (None: for ever).

    *backend* is Celery's, which encodes what is stored.
    """

    def __init__(
        self, backend: KeyValueStoreBackend, store: StoreAccess, group_id: Any, lifetime: float | None
    ) -> None:
        self._backend = backend
        self._store = store
        self._group_id = group_id
        self._lifetime = lifetime
        self._name = key(str(backend.get_key_for_chord(group_id)))

    def begin(self, results: Iterable[Any]) -> None:
        """Notes that it begins, before any part is sent."""
        shape = shape_of(results)
        self._store.run_until_answered(lambda t: chords.begin(t, self._name, shape, self._lifetime))

    def size(self, parts: int, *, more: bool = False) -> None:
        """Notes how many parts it has, when the last is about to be sent; or with *more*, that it has so many more."""
        go = self._store.run if more else self._store.run_until_answered  # what is added twice would be waited for
        go(lambda t: t.call("FBTASKS_CELERY_API.CHORD_SIZE", self._name, parts, int(more)))

    def part(self, request: Any, state: str, result: Any) -> None:
        """Counts a part that has ended; the one that makes it complete sends the body, or tells it what went wrong."""
        backend = self._backend
        value = backend.encode([state, backend.encode_result(result, state)])
        data = value.encode() if isinstance(value, str) else bytes(value)
        part = Part(key(str(request.id)), request.group_index, data)
        final = state == states.SUCCESS
        known, complete = self._store.run_until_answered(
            lambda t: chords.ended(t, self._name, part, final=final, expires=self._lifetime)
        )
        if not known:
            logger.warning("Task %s ended as part of chord %s, which is not known.", request.id, self._group_id)
        if complete is not None:
            self._go_on(request.chord, complete)

    def _go_on(self, body: Any, complete: Complete) -> None:
        callback = maybe_signature(body, app=self._backend.app)
        try:
            try:
                self._send(callback, self._values(complete))
            except ChordError:
                raise
            except Exception as error:
                raise ChordError(f"Join error: {error!r}") from error
        except ChordError as error:
            logger.error("Chord %s has failed: %s", self._group_id, error)
            self._backend.chord_error_from_stack(callback, error)
        self._store.run_until_answered(lambda t: t.call("FBTASKS_CELERY.CHORD_END", self._name, complete.id))

    def _send(self, callback: Any, values: list[Any]) -> None:
        plainly: Callable[..., Any] = lambda publish, *arguments: publish(*arguments)  # noqa: E731
        publish = getattr(self._backend.app.amqp, "_retry_publish", plainly)  # Celery before 5.7 has none
        try:
            publish(callback.delay, values)
        except Exception as error:
            raise ChordError(f"Callback error: {error!r}") from error

    def _values(self, complete: Complete) -> list[Any]:
        found = [(part, self._value(part)) for part in complete.parts]
        if complete.shape is None:
            return [value for _, value in found]
        # Those that were added later are no part of the shape.
        return self._nested(json.loads(complete.shape), {part.task_id: value for part, value in found}) + [
            value for part, value in found if part.index is None
        ]

    def _value(self, part: Part) -> Any:
        backend = self._backend
        state, value = backend.decode(part.value)
        if state in states.EXCEPTION_STATES:
            value = backend.exception_to_python(value)
        if state in states.PROPAGATE_STATES:
            error = ChordError(f"Dependency {shown(part.task_id)} raised {value!r}")
            raise error from value if isinstance(value, BaseException) else None
        return value

    def _nested(self, shape: list[Any], values: dict[str, Any]) -> list[Any]:
        return [self._nested(item, values) if isinstance(item, list) else self._leaf(item, values) for item in shape]

    def _leaf(self, task_id: str, values: dict[str, Any]) -> Any:
        name = key(task_id)
        if name in values:
            return values[name]
        app = self._backend.app
        with allow_join_result():  # it ended without being counted here
            try:
                return app.AsyncResult(task_id).get(timeout=app.conf.result_chord_join_timeout)
            except Exception as error:
                raise ChordError(f"Dependency {task_id} raised {error!r}") from error
