"""Operations on queues and names of tasks: nothing of them begins while they are paused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from fbtasks.database.database import Database
from fbtasks.errors import ConfigurationError
from fbtasks.firebird.session import Session, Transaction
from fbtasks.queue.operations.queues import check_queue
from fbtasks.queue.register import processes
from fbtasks.system.checks import did_you_mean
from fbtasks.system.showing import command_line

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

_MOST: Final = 500
"""Tasks that one transaction parks, or puts back."""


@dataclass(frozen=True, slots=True)
class Paused:
    """The queues and names that were paused or resumed."""

    queues: list[str]
    tasks: list[str]
    """The names of tasks. In both lists is what changed alone."""
    put_back: int = 0
    """How many parked tasks went back into their queues."""


def pause(
    database: Database, queues: Sequence[str] = (), names: Sequence[str] = (), app: FBTasks | None = None
) -> Paused:
    """Pauses queues, from which nothing is claimed any more, and names, whose tasks are parked.

    Those that are ready are parked now, and others when their turn comes. It holds at the next claim of every worker;
    what was claimed before goes on. Raises :class:`ConfigurationError` for a queue or a name that is known neither to
    the database nor to the code of *app*; then nothing is changed.
    """

    def work(session: Session) -> Paused:
        changed = _set(database, session, queues, names, app, paused=True)
        for name in names:
            last: int | None = 0
            while last is not None:
                last = session.call("FBTASKS_OPERATOR.PARK", name, last, _MOST)
        return changed

    return database.use(work)


def resume(
    database: Database, queues: Sequence[str] = (), names: Sequence[str] = (), app: FBTasks | None = None
) -> Paused:
    """Goes on after :func:`pause`, and puts what was parked back into its queue, as it was. Raises as :func:`pause`."""

    def work(session: Session) -> Paused:
        changed, total = _set(database, session, queues, names, app, paused=False), 0
        for name in names:
            while some := session.call("FBTASKS_OPERATOR.UNPARK", name, _MOST):
                total += some
        return replace(changed, put_back=total)

    return database.use(work)


def how_to_resume(queues: Iterable[str] = (), names: Iterable[str] = ()) -> str:
    """Returns the command that goes on with paused queues and names."""
    return command_line("fbtasks {}", ["resume", *queues, *(word for name in names for word in ("--task", name))])


def paused_names(session: Session) -> list[str]:
    """Returns the names of tasks that are paused."""
    return [name for (name,) in session.read("paused_names")]


def _set(
    database: Database, session: Session, queues: Sequence[str], names: Sequence[str], app: FBTasks | None, *,
    paused: bool,
) -> Paused:  # fmt: skip
    for queue in queues:
        check_queue(database, session, queue, app)
    for name in names:
        _check_name(session, name, app)

    def changed(transaction: Transaction) -> Paused:
        return Paused(
            [queue for queue in queues if transaction.call("FBTASKS_OPERATOR.PAUSE", queue, int(paused))],
            [name for name in names if transaction.call("FBTASKS_OPERATOR.PAUSE_NAME", name, int(paused))],
        )

    return session.run(changed)


def _check_name(session: Session, name: str, app: FBTasks | None) -> None:
    names = {*processes.task_names(session, alive=False), *paused_names(session)}
    # In SQL a name is equal to that of another task with more spaces at its end, and no task has any there.
    if name in names or (name == name.strip() and session.read("is_live", name)[0][0]):
        return
    names.update(() if app is None else app.tasks)
    if name not in names:
        hint = did_you_mean(name, names) or f" Known: {', '.join(sorted(names)) or 'none'}."
        nor = "" if app is None else ", nor does the app"
        remedy = " One that only an app has is known with -A MODULE." if app is None else ""
        raise ConfigurationError(
            f"no worker knows a task named {name!r}{nor}, and none of that name waits.{hint}{remedy}"
        )
