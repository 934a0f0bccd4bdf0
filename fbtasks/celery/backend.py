"""The backend: values by key, the waits for them, and the chords."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import TimeoutError as CeleryTimeout

from fbtasks import clock
from fbtasks.celery.chords import Chord
from fbtasks.config import Settings
from fbtasks.errors import ConflictError, DatabaseUnavailable
from fbtasks.firebird.session import INSERT, READ, Transaction
from fbtasks.notify.results import ResultListener, Waiter
from fbtasks.store import chords, keyvalues
from fbtasks.store.shared import SharedDatabase
from fbtasks.url import DatabaseURL

T = TypeVar("T")
_POLL: Final = 1.0
"""Seconds between two looks when no event comes."""
_FIRST_POLLS: Final = 0.05
_POOL: Final = 10
PATIENCE: Final = 20.0
"""Seconds for which a database that does not answer is asked again."""

_stores: dict[tuple[str, str | None, bool | None], Store] = {}
_lock = threading.Lock()


class Store:
    """One database as the backends of this process use it."""

    def __init__(self, url: DatabaseURL, auto_migrate: bool | None) -> None:
        self.shared = SharedDatabase(Settings(url=url, pool_size=_POOL, auto_migrate=auto_migrate))
        self._listener = ResultListener(self.shared.database, keyvalues.EVENTS)
        self.shared.around_fork(self._listener.close, lambda: None)

    @contextmanager
    def waiter(self) -> Iterator[Waiter]:
        """A wait, woken when a value was stored."""
        with self._listener.waiter() as waiter:
            yield waiter

    def close(self) -> None:
        """Stops listening and closes the connections."""
        self._listener.close()
        self.shared.close()


def store_for(url: DatabaseURL, auto_migrate: bool | None) -> Store:
    """The store of this process for *url*."""
    key = (str(url), url.password, auto_migrate)
    with _lock:
        store = _stores.get(key)
        if store is None or store.shared.inherited:
            store = _stores[key] = Store(url, auto_migrate)
        return store


def close_all() -> None:
    """Closes the connections of all backends of this process."""
    with _lock:
        stores = list(_stores.values())
        _stores.clear()
    for store in stores:
        if not store.shared.inherited:
            store.close()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _kept.extend(_stores.values())  # the parent's, with its locks: neither used nor collected
    _stores.clear()


_kept: list[Store] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _text(key: Any) -> str:
    return key.decode() if isinstance(key, bytes) else str(key)


class FirebirdBackend(KeyValueStoreBackend):  # type: ignore[misc]  # Celery has no types
    """Results in the table QUEUE_CELERY.

    A success is never replaced: a task that was thought lost cannot overwrite its successor's result. An event wakes
    who waits. A chord keeps what its parts returned, and counts each once.

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
        """The URL, without the password unless it is asked for."""
        return self.url or "" if include_password else str(self._address).replace(":***@", ":**@")

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "expires": self.expires, "url": self.url})

    @property
    def _store(self) -> Store:
        return store_for(self._address, self._auto_migrate)

    def run(self, work: Callable[[Transaction], T], kind: bytes = INSERT) -> T:
        """*work* in a transaction of its own."""
        store = self._store
        found = store.shared.use(work, kind)
        # Only now: the driver's own exit function, which shuts the library down, must run after this one.
        if not getattr(store, "at_exit", False):
            store.at_exit = True  # type: ignore[attr-defined]
            atexit.unregister(close_all)
            atexit.register(close_all)
            store.shared.at_pool_exit(close_all)
        return found

    def insist(self, work: Callable[[Transaction], T]) -> T:
        """The same, again and again while the database does not answer: for what comes to the same when done twice."""
        return self._patiently(lambda: self.run(work))

    def _patiently(self, ask: Callable[[], T], deadline: float | None = None) -> T:
        begun = clock.monotonic()
        limit = begun + self._patience if deadline is None else min(begun + self._patience, deadline)
        pause = _FIRST_POLLS
        while True:
            try:
                return ask()
            except (DatabaseUnavailable, ConflictError):
                left = limit - clock.monotonic()
                if left <= 0:
                    raise
            time.sleep(min(pause, left))
            pause = min(2 * pause, _POLL)

    # What KeyValueStoreBackend is built on.

    def get(self, key: Any) -> bytes | None:
        """A value, or None."""
        return self.run(lambda t: keyvalues.fetch(t, _text(key)), READ)

    def mget(self, keys: Iterable[Any]) -> list[bytes | None]:
        """Several values, in one transaction."""
        names = [_text(key) for key in keys]
        return self.run(lambda t: [keyvalues.fetch(t, name) for name in names], READ)

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
        self.insist(lambda t: keyvalues.store(t, name, data, final=final, expires=self._lifetime))

    @property
    def _lifetime(self) -> float | None:
        return float(self.expires) if self.expires else None

    def delete(self, key: Any) -> None:
        """Deletes a value."""
        self.insist(lambda t: keyvalues.delete(t, _text(key)))

    def incr(self, key: Any) -> int:
        """Counts one more."""
        return self.run(lambda t: keyvalues.increment(t, _text(key), None, self._lifetime))

    def expire(self, key: Any, value: float | None) -> None:
        """Keeps a value for so many seconds from now; without *value* for ever."""
        self.run(lambda t: keyvalues.expire(t, _text(key), float(value) if value else None))

    # Chords.

    @property
    def chord_lifetime(self) -> float | None:
        """Seconds for which a chord is kept after its last part."""
        expires = getattr(self, "chord_expires", self.expires)  # Celery before 5.7 has but one
        return float(expires) if expires else None

    def apply_chord(self, header_result_args: Any, body: Any, **options: Any) -> None:
        """A chord begins."""
        self.ensure_chords_allowed()
        group_id, results = header_result_args
        Chord(self, group_id).begin(results)

    def set_chord_size(self, group_id: Any, chord_size: int) -> None:
        """How many parts it has."""
        Chord(self, group_id).size(chord_size)

    def add_to_chord(self, chord_id: Any, result: Any) -> None:
        """One part more, of a chord that has begun."""
        Chord(self, chord_id).size(1, more=True)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **options: Any) -> None:
        """A part of a chord has ended. One that ran twice, after its worker died, is counted once."""
        if request.id and request.group:
            Chord(self, request.group).part(request, state, result)

    def cleanup(self) -> None:
        """Deletes what has expired (the task ``celery.backend_cleanup`` of beat does this daily)."""
        most = keyvalues.BATCH
        while max(self.run(lambda t: keyvalues.prune(t, most)), self.run(lambda t: chords.prune(t, most))) == most:
            pass

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """Whether what failed may be tried again: storing twice is storing once."""
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
        """The state of a task that has ended. Raises Celery's ``TimeoutError`` after *timeout* seconds."""
        self._ensure_not_eager()
        deadline = None if timeout is None else clock.monotonic() + timeout
        meta = self._patiently(lambda: self.get_task_meta(task_id), deadline)
        if meta["status"] in states.READY_STATES:
            return meta
        with self._store.waiter() as waiter:
            for pause in _pauses(deadline):
                meta = self._patiently(lambda: self.get_task_meta(task_id), deadline)
                if meta["status"] in states.READY_STATES:
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
        """The states of a group's tasks as they end.

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
        """The states of tasks as they end. Raises Celery's ``TimeoutError`` after *timeout* seconds."""
        left = {str(task_id) for task_id in task_ids}
        deadline = None if timeout is None else clock.monotonic() + timeout
        rounds = 0

        def look() -> list[tuple[str, Any]]:
            found = self._patiently(lambda: list(super(FirebirdBackend, self).get_many(
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
    """How long to wait before each next look; None when the time is over.

    The first ones are short: the listener may still be connecting.
    """
    longest = _FIRST_POLLS
    while True:
        left = None if deadline is None else deadline - clock.monotonic()
        if left is not None and left <= 0:
            yield None
            return
        yield longest if left is None else min(longest, left)
        longest = min(2 * longest, _POLL)
