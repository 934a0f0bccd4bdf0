"""Operations on queues and names of tasks: nothing of them begins while they are paused."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fbtasks.database.database import Database
from fbtasks.errors import ConfigurationError
from fbtasks.firebird.session import Session, Transaction
from fbtasks.queue import tasks
from fbtasks.queue.operations.choosing import InCode
from fbtasks.queue.operations.queues import check_queue
from fbtasks.queue.register import processes
from fbtasks.system.checks import did_you_mean

_MOST: Final = 500
"""Tasks that one transaction parks, or puts back."""


@dataclass(frozen=True, slots=True)
class Paused:
    """What was paused, or goes on."""

    queues: list[str]
    tasks: list[str]
    """The names of tasks. In both lists is what changed alone."""
    put_back: int = 0
    """How many parked tasks went back into their queues."""


@dataclass(frozen=True, slots=True)
class Code:
    """What the code of an app has, which is known beside what the database has."""

    queues: InCode = None
    tasks: InCode = None
    """The names of its tasks."""


_NO_CODE = Code()


def pause(database: Database, queues: Iterable[str] = (), names: Iterable[str] = (), code: Code = _NO_CODE) -> Paused:
    """Pauses queues, from which nothing is claimed any more, and names, whose tasks are parked.

    Those that are ready are parked now, and others when their turn comes. It holds at the next claim of every worker;
    what was claimed before goes on. Raises :class:`ConfigurationError` for a queue or a name that is known neither to
    the database nor to the *code*; then nothing is changed.
    """
    queues, names = list(queues), list(names)

    def work(session: Session) -> Paused:
        _check(database, session, queues, names, code)
        changed = session.run(lambda t: _set(t, queues, names, paused=True))
        for name in names:
            _park(session, name)
        return changed

    return database.use(work)


def resume(database: Database, queues: Iterable[str] = (), names: Iterable[str] = (), code: Code = _NO_CODE) -> Paused:
    """Goes on after :func:`pause`, and puts what was parked back into its queue, as it was. Raises as :func:`pause`."""
    queues, names = list(queues), list(names)

    def work(session: Session) -> Paused:
        _check(database, session, queues, names, code)
        changed = session.run(lambda t: _set(t, queues, names, paused=False))
        return Paused(changed.queues, changed.tasks, sum(_put_back(session, name) for name in names))

    return database.use(work)


def how_to_resume(queues: Iterable[str] = (), names: Iterable[str] = ()) -> str:
    """Returns the command that goes on with paused queues and names."""
    return shlex.join(["fbtasks", "resume", *queues, *(word for name in names for word in ("--task", name))])


def paused_names(session: Session) -> list[str]:
    """Returns the names of tasks that are paused."""
    return [name for (name,) in session.read("paused_names")]


def _set(transaction: Transaction, queues: list[str], names: list[str], *, paused: bool) -> Paused:
    return Paused(
        [queue for queue in queues if transaction.call("FBTASKS_OPERATOR.PAUSE", queue, int(paused))],
        [name for name in names if transaction.call("FBTASKS_OPERATOR.PAUSE_NAME", name, int(paused))],
    )


def _park(session: Session, name: str) -> None:
    last: int | None = 0
    while last is not None:
        last = session.call("FBTASKS_OPERATOR.PARK", name, last, _MOST)


def _put_back(session: Session, name: str) -> int:
    total = 0
    while some := session.call("FBTASKS_OPERATOR.UNPARK", name, _MOST):
        total += some
    return total


def _check(database: Database, session: Session, queues: Iterable[str], names: Iterable[str], code: Code) -> None:
    for queue in queues:
        check_queue(database, session, queue, code.queues)
    for name in names:
        _check_name(session, name, code.tasks)


def _check_name(session: Session, name: str, in_code: InCode) -> None:
    names = {*processes.task_names(session), *paused_names(session)}
    if name in names or tasks.is_live(session, name):
        return
    names.update(() if in_code is None else in_code())
    if name not in names:
        hint = did_you_mean(name, names) or f" Known: {', '.join(sorted(names)) or 'none'}."
        nor = "" if in_code is None else ", nor does the app"
        remedy = " One that only an app has is known with -A MODULE." if in_code is None else ""
        raise ConfigurationError(
            f"no worker knows a task named {name!r}{nor}, and none of that name waits.{hint}{remedy}"
        )
