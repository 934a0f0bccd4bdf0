"""The backend: values by key, the waits for them, and the chords."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Final

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import TimeoutError as CeleryTimeout

from fbtasks import timing as clock
from fbtasks.config import Settings
from fbtasks.contrib.celery.chords import Chord
from fbtasks.contrib.celery.results import FIRST_POLLS, POLL, StoreAccess
from fbtasks.contrib.celery.store import keyvalues
from fbtasks.errors import ConflictError, DatabaseUnavailable
from fbtasks.firebird.session import READ, UPDATE
from fbtasks.timing import Backoff
from fbtasks.url import DatabaseURL

_POOL: Final = 10
PATIENCE: Final = 20.0
"""Seconds for which a database that does not answer is asked again."""


def _text(key: Any) -> str:
    return key.decode() if isinstance(key, bytes) else str(key)


class FirebirdBackend(KeyValueStoreBackend):  # type: ignore[misc]  # Celery has no types
    """Results in the table QUEUE_CELERY.

    A success is never replaced: a task that was thought lost cannot overwrite its successor's result. An event wakes
    those that wait. A chord keeps what its parts returned, and counts each once.

    Options (``result_backend_transport_options``):

    * ``patience``: seconds for which storing and waiting go on while the database does not answer (20);
    * ``auto_migrate``: whether the schema is made or brought up to date at the first use (None: for the embedded engine
      alone).
    """

    key_t = _text
    persistent = True
    supports_native_join = True

    def __init__(self, app: Any, url: str | None = None, **options: Any) -> None:
        super().__init__(app, **options)
        self.url = url
        self._address = DatabaseURL.parse(url or "")
        settings = app.conf.get("result_backend_transport_options") or {}
        self._auto_migrate = settings.get("auto_migrate")
        self._patience = float(settings.get("patience", PATIENCE))

    def as_uri(self, include_password: bool = False) -> str:
        """Returns the URL, without the password unless it is asked for."""
        return self.url or "" if include_password else str(self._address).replace(":***@", ":**@")

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "expires": self.expires, "url": self.url})

    @cached_property
    def _store(self) -> StoreAccess:
        return StoreAccess(
            Settings("celery", url=self._address, pool_size=_POOL, auto_migrate=self._auto_migrate), self._patience
        )

    # What KeyValueStoreBackend is built on.

    def get(self, key: Any) -> bytes | None:
        """Returns a value, or None."""
        return self._store.run(lambda t: keyvalues.fetch(t, _text(key)), READ)

    def mget(self, keys: Iterable[Any]) -> list[bytes | None]:
        """Returns several values, read in one transaction."""
        names = [_text(key) for key in keys]
        return self._store.run(lambda t: [keyvalues.fetch(t, name) for name in names], READ)

    def set(self, key: Any, value: Any) -> None:
        """Stores a value."""
        self._set_with_state(key, value, None)

    def _store_result(
        self, task_id: Any, result: Any, state: str, traceback: Any = None, request: Any = None, **options: Any
    ) -> Any:
        # Without the look at what is there that the base class takes first: the database keeps a success itself.
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = _text(task_id)
        self._set_with_state(self.get_key_for_task(task_id), self.encode(meta), state)
        return result

    def _set_with_state(self, key: Any, value: Any, state: str | None) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        name = _text(key)
        # A group is stored as a success as well, and replaced when it is stored again.
        final = state == states.SUCCESS and name.startswith(self.task_keyprefix)
        self._store.run_until_answered(lambda t: keyvalues.store(t, name, data, final=final, expires=self._lifetime))

    @property
    def _lifetime(self) -> float | None:
        return float(self.expires) if self.expires else None

    def delete(self, key: Any) -> None:
        """Deletes a value."""
        self._store.run_until_answered(lambda t: keyvalues.delete(t, _text(key)))

    # Chords.

    def _chord(self, group_id: Any) -> Chord:
        expires = getattr(self, "chord_expires", self.expires)  # Celery before 5.7 has but one
        return Chord(self, self._store, group_id, float(expires) if expires else None)

    def apply_chord(self, header_result_args: Any, body: Any, **options: Any) -> None:
        """Begins a chord."""
        self.ensure_chords_allowed()
        group_id, results = header_result_args
        self._chord(group_id).begin(results)

    def set_chord_size(self, group_id: Any, chord_size: int) -> None:
        """Notes how many parts a chord has."""
        self._chord(group_id).size(chord_size)

    def add_to_chord(self, chord_id: Any, result: Any) -> None:
        """Adds a part to a chord that has begun."""
        self._chord(chord_id).size(1, more=True)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **options: Any) -> None:
        """Counts a part of a chord that has ended; one that ran twice, after its worker died, is counted once."""
        if request.id and request.group:
            self._chord(request.group).part(request, state, result)

    def cleanup(self) -> None:
        """Deletes what has expired (the task ``celery.backend_cleanup`` of beat does this daily)."""
        while self._store.run(lambda t: t.call("FBTASKS_CELERY.PRUNE", keyvalues.BATCH), UPDATE) >= keyvalues.BATCH:
            pass

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """Returns whether what failed may be tried again: storing twice is storing once."""
        return isinstance(exc, (DatabaseUnavailable, ConflictError))

    # Waiting.

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_interval: Any = None,
    ) -> Any:
        """Waits for the end of a task. Returns its state. Raises Celery's ``TimeoutError`` after *timeout* seconds."""
        self._ensure_not_eager()
        deadline = None if timeout is None else clock.monotonic() + timeout

        def look() -> Any:
            meta = self._store.until_answered(lambda: self.get_task_meta(task_id), deadline)
            return meta if meta["status"] in states.READY_STATES else None

        if meta := look():
            return meta
        with self._store.waiter() as waiter:
            for pause in _pauses(deadline):
                if meta := look():
                    return meta
                if on_interval:
                    on_interval()
                if pause is None:
                    raise CeleryTimeout("The operation timed out.")
                waiter.wait(pause)
        raise AssertionError("not reached")

    def iter_native(
        self, result: Any, timeout: float | None = None, interval: float | None = 0.5, no_ack: bool = True,
        on_message: Any = None, on_interval: Any = None,
    ) -> Iterator[tuple[str, Any]]:  # fmt: skip
        """Yields the states of a group's tasks as they end.

        Raises what failed before the group: then its tasks are never sent.
        """

        def look() -> None:
            node = getattr(result, "parent", None)
            while node:
                node.maybe_throw()
                node = node.parent
            if on_interval:
                on_interval()

        return super().iter_native(result, timeout, interval, no_ack, on_message, look)  # type: ignore[no-any-return]

    def get_many(
        self, task_ids: Iterable[str], timeout: float | None = None, interval: float | None = 0.5, no_ack: bool = True,
        on_message: Any = None, on_interval: Any = None, max_iterations: int | None = None, **options: Any,
    ) -> Iterator[tuple[str, Any]]:  # fmt: skip
        """Yields the states of tasks as they end. Raises Celery's ``TimeoutError`` after *timeout* seconds."""
        left = {str(task_id) for task_id in task_ids}
        deadline = None if timeout is None else clock.monotonic() + timeout
        rounds = 0

        def look() -> list[tuple[str, Any]]:
            found = self._store.until_answered(lambda: list(super(FirebirdBackend, self).get_many(
                set(left), interval=0, on_message=on_message, max_iterations=1, **options
            )), deadline)  # fmt: skip
            left.difference_update(task_id for task_id, _ in found)
            return found

        yield from look()
        if not left:
            return
        with self._store.waiter() as waiter:
            for pause in _pauses(deadline):
                yield from look()
                if not left:
                    return
                if pause is None:
                    raise CeleryTimeout(f"Operation timed out ({timeout})")
                if on_interval:
                    on_interval()
                rounds += 1
                if max_iterations and rounds >= max_iterations:
                    return
                waiter.wait(pause)


def _pauses(deadline: float | None) -> Iterator[float | None]:
    """Yields how long to wait before each next look; None when the time is over.

    The first ones are short: the listener may still be connecting.
    """
    pauses = Backoff(FIRST_POLLS, POLL)
    while True:
        left = None if deadline is None else deadline - clock.monotonic()
        if left is not None and left <= 0:
            yield None
            return
        pause = pauses.next()
        yield pause if left is None else min(pause, left)
