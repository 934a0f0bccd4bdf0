"""The methods of tasks and results that progress adds."""

from __future__ import annotations

from typing import Any, Final, ParamSpec, TypeVar

from fbtasks.errors import ConfigurationError
from fbtasks.features.progress import store
from fbtasks.queue.result import AsyncResult
from fbtasks.system import checks
from fbtasks.tasks.definition import Task
from fbtasks.tasks.request import current

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
META: Final = 8_000
"""Bytes of JSON that a task may say of its progress."""
_OWN: Final = ("PENDING", "RETRY", "SUCCESS", "FAILURE", "REVOKED")


class ReportingTask(Task[P, R]):
    """A task that can say how far it has come."""

    def update_state(self, meta: Any = None, *, state: str = "PROGRESS", task_id: str | None = None) -> None:
        """Tells those who have the result how far the task has come: *meta* is ``result.info`` while it runs.

        *meta* is anything that JSON has, of up to 8,000 bytes. *state* is what ``result.state`` is meanwhile. The last
        of a second is written by the worker; the call itself waits for nothing. Outside of a worker it does nothing.
        Raises :class:`SerializationError`, :class:`PayloadTooLarge`, and :class:`ConfigurationError` for a *state* that
        is the end of a task, and for the *task_id* of another one.
        """
        request, reports, number, _ = current()
        progress_word("state", state)
        if task_id is not None and (request is None or task_id != request.id):
            raise ConfigurationError(
                f"task_id {checks.shown(task_id)} is not the task that runs here: a task tells of itself alone."
            )
        data = self.app.serializer.dump_json(meta, f"the progress of {self.name!r}", "meta", META)
        if request is not None:
            reports.gather(number, "progress", Last).data = store.packed(state, data)


class Last:
    """The last that a run has said of its progress."""

    data = b""

    def take(self, *, ended: bool) -> bytes:
        """Returns it once; nothing when the run has *ended*, of which it is no progress any more."""
        data, self.data = self.data, b""
        return b"" if ended else data


class ReportedResult(AsyncResult[R]):
    """A result that knows what its task says while it runs."""

    def _progress(self) -> tuple[str, bytes] | None:
        return self._read(store.of_task)


def progress_word(what: str, value: object) -> str:
    """Checks the state of a task that runs. Raises :class:`ConfigurationError` for what cannot be one."""
    if not isinstance(value, str) or not 0 < len(value) <= 50 or not value.isprintable():
        raise ConfigurationError(f"{what} {checks.shown(value)} must be text of 1 to 50 printable characters.")
    if value in _OWN:
        raise ConfigurationError(
            f"{what} {value!r} is said of a task that does not run: return, or raise an error, and it has that state."
        )
    return value
