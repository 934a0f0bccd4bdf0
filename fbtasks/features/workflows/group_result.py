"""Results of groups: of all their tasks together, also by the id of the group."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from fbtasks.errors import ConfigurationError, ResultTimeout, TaskNotFound
from fbtasks.features.workflows.node_result import NodeResult, revoke_all
from fbtasks.queue.notify.outcomes import Wait, look
from fbtasks.states import State
from fbtasks.system import checks
from fbtasks.system.showing import count, ending
from fbtasks.tasks.celery_words import AnswersCelery

if TYPE_CHECKING:
    from fbtasks.app import AsyncResult, FBTasks

KEPT: Final = timedelta(days=30)
"""How long the members of a group are known at least, that is saved; longer where results are."""


class GroupResult(NodeResult, AnswersCelery):
    """The results of a group of a workflow, in the order of its members."""

    _known_as = "a result"

    def __init__(
        self,
        results: Iterable[NodeResult] | Callable[[], Iterable[NodeResult]],
        app: FBTasks | None,
        id: str = "",
    ) -> None:
        """*results*: those of its members, or what makes them when they are asked for first."""
        self._make = results if callable(results) else None
        self._results = [] if callable(results) else list(results)
        self.id = id
        """By which :meth:`restore` finds it, once it is saved; empty for a group without tasks."""
        self.app = app

    @property
    def results(self) -> list[NodeResult]:
        """Those of its members: a group's own for a group in it."""
        make = self._make
        if make is not None:
            self._results = list(make())
            self._make = None  # last: other threads may ask as well
        return self._results

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_results": self.results, "_make": None}

    @classmethod
    def restore(cls, id: str | int, app: FBTasks | None = None) -> GroupResult | None:
        """Returns the group of that *id*, which was saved; None when it is not known, or not known any more."""
        if app is None:
            raise ConfigurationError(f"GroupResult.restore({id!r:.80}) needs its app: restore(id, app=app).")
        found = app.database.use(lambda session: session.read("FBTASKS_WORKFLOWS_API.SAVED_GROUP", _checked(id)))
        return _made(json.loads(bytes(found[0][0])), app) if found else None

    def save(self) -> str:
        """Saves the members in the database, so that :meth:`restore` finds them for 30 days. Returns the id.

        The group itself is not written elsewhere; its tasks have their outcomes as any others.
        """
        if self.app is None:
            raise ConfigurationError("a group without tasks is not saved: its result is [].")
        data = json.dumps(_members(self)).encode("ascii")
        lasts = max(KEPT, self.app.settings.result_expires) // timedelta(milliseconds=1)
        row = _checked(self.id), lasts, data
        self.app.database.use(lambda session: session.call("FBTASKS_WORKFLOWS_API.SAVE_GROUP", *row))
        return self.id

    def delete(self) -> None:
        """Forgets what :meth:`save` has written; the tasks and their outcomes stay."""
        if self.app is not None:
            self.app.database.use(lambda session: session.call("FBTASKS_WORKFLOWS_API.FORGET_GROUP", _checked(self.id)))

    def __repr__(self) -> str:
        return f"<GroupResult {self.id or 'without an id'} of {len(self.results)}>"

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[NodeResult]:
        return iter(self.results)

    def __getitem__(self, number: int) -> NodeResult:
        return self.results[number]

    def _parts(self) -> list[NodeResult]:
        return self.results

    def tasks(self) -> list[AsyncResult[Any]]:
        """Returns the results of all its tasks, with those of the groups in it."""
        found: list[AsyncResult[Any]] = []
        for each in self.results:
            if isinstance(each, GroupResult):
                found += each.tasks()
            else:
                found.append(cast("AsyncResult[Any]", each))
        return found

    def completed_count(self) -> int:
        """Returns how many of its tasks have succeeded and have a result that is kept."""
        return sum(_outcome_of(wait) is State.SUCCEEDED for wait in self._look())

    def ready(self) -> bool:
        """Returns whether all of them have ended."""
        return all(wait.over for wait in self._look())

    def successful(self) -> bool:
        """Returns whether all of them have returned."""
        return all(_outcome_of(wait) is State.SUCCEEDED for wait in self._look())

    def failed(self) -> bool:
        """Returns whether some have failed for good."""
        return any(_outcome_of(wait) is State.FAILED for wait in self._look())

    def waiting(self) -> bool:
        """Returns whether some have not ended."""
        return not self.ready()

    def get(self, timeout: float | None = None, propagate: bool = True) -> list[Any]:
        """Waits for the results of all, up to *timeout* seconds. Returns them, with a list for each group in it.

        Raises what :meth:`AsyncResult.get` raises when one of them has not succeeded, as soon as that has ended; with
        *propagate* false the exception is in the place of the result.
        """
        tasks = self.tasks()
        if not tasks:
            return [each.get() for each in self.results if isinstance(each, GroupResult)]
        assert self.app is not None
        waits = [each._wait() for each in tasks]

        def looked() -> None:
            for task, wait in zip(tasks, waits, strict=True):
                task._note(wait)
                if propagate and wait.over and _outcome_of(wait) is not State.SUCCEEDED:
                    task._end(wait)

        self.app.outcomes.wait(waits, timeout, looked)
        late = [task for task, wait in zip(tasks, waits, strict=True) if not wait.over]
        if timeout is not None and late:
            have = "has" if len(late) == 1 else "have"
            raise ResultTimeout(
                f"{len(late)} of {count(len(tasks), 'task')} {have} not ended after {count(timeout, 'second')}. The "
                f"first of them is task {late[0].id}: {ending(late[0]._tell())}"
            )
        ended = {id(task): _ended(task, wait, propagate) for task, wait in zip(tasks, waits, strict=True)}
        return self._values(ended)

    join = get

    def _values(self, ended: Mapping[int, Any]) -> list[Any]:
        return [each._values(ended) if isinstance(each, GroupResult) else ended[id(each)] for each in self.results]

    def revoke(self, *, terminate: bool = False) -> int:
        """Cancels those of its tasks that have not ended. Returns how many."""
        return revoke_all(self.app, self.tasks(), terminate=terminate)

    def forget(self) -> None:
        """Deletes the outcomes."""
        for each in self.tasks():
            each.forget()

    def _look(self) -> list[Wait]:
        waits = [each._wait() for each in self.tasks()]
        if left := [wait for wait in waits if not wait.over]:
            assert self.app is not None
            self.app.database.use(partial(look, left))
        return waits


def _outcome_of(wait: Wait) -> State | None:
    """Returns how the task has ended: without a kept outcome it has succeeded. None: it has not, or is not known."""
    return wait.stored.state if wait.stored is not None else State.SUCCEEDED if wait.gone else None


def _ended(task: AsyncResult[Any], wait: Wait, propagate: bool) -> Any:
    try:
        return task._end(wait)
    except Exception as error:
        if propagate:
            raise
        return error


def _checked(id: str | int) -> str:
    if not isinstance(id, str | int) or isinstance(id, bool) or not id or len(str(id)) > 100:
        raise ConfigurationError(f"{checks.shown(id)} is not the id of a group: it is that of GroupResult.id.")
    return str(id)


def _members(group: GroupResult) -> list[Any]:
    """Returns the id of a group and those of its members, as they are saved."""
    return [group.id, [_members(each) if isinstance(each, GroupResult) else each.id for each in group.results]]


def _made(saved: list[Any], app: FBTasks) -> GroupResult:
    id, members = saved
    made = [_made(each, app) if isinstance(each, list) else app.AsyncResult(each) for each in members]
    return GroupResult(made, app, id)


class Groups:
    """``app.GroupResult(id)``, and ``app.GroupResult.restore(id)``, which returns None for what is not known."""

    def __init__(self, app: FBTasks) -> None:
        self._app = app

    def __call__(self, id: str | int) -> GroupResult:
        """Returns the results of a group that was saved, by its id. Raises :class:`TaskNotFound`."""
        found = self.restore(id)
        if found is None:
            raise TaskNotFound(
                f"the database knows no group {id!r:.80}: call save() of its GroupResult where it is enqueued. A group "
                f"is known for {KEPT.days} days from then."
            )
        return found

    def restore(self, id: str | int) -> GroupResult | None:
        """Returns the results of a saved group by its id; None for one that is not known."""
        return GroupResult.restore(id, self._app)
