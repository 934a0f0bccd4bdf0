"""The packages of the queue: made under a new number, put into use, and dropped when no connection can know them.

None is replaced. A connection goes on with what it has prepared, and with the triggers that it has loaded; what is not
committed may be loaded by others; and to replace what others prepare at that moment can abort the process. New names do
none of that.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final, NamedTuple

from fbtasks.database import features, packages
from fbtasks.database.hooks import Answering
from fbtasks.database.packages import queries
from fbtasks.database.schema import CORE, Part, numbered
from fbtasks.errors import AuthenticationError, ConflictError, StatementRefused
from fbtasks.firebird.session import Session, Transaction
from fbtasks.firebird.signals import held_signals

_NUMBERED: Final = re.compile(r"FBTASKS_\w+_(\d+)")


@cache
def fingerprint(parts: tuple[Part, ...], answering: tuple[Answering, ...]) -> str:
    """Returns the hash of the packages and triggers of *parts*, in a database whose hooks call *answering*."""
    made = (*packages.headers(0, parts, answering), *packages.bodies(0, parts, answering), *packages.triggers(*parts))
    return hashlib.sha256("\n".join(made).encode()).hexdigest()


def current(session: Session) -> int:
    """Returns the number of the packages in use; 0 when there are none yet."""
    try:
        return int(session.read("generation", more=" ")[0][0])
    except (StatementRefused, IndexError):  # a queue that is being made, or one of a former release, or none
        return 0


def last(session: Session) -> tuple[int, str] | None:
    """Returns the number of the last generation that was begun, and the hash of the one in use; None: there is none."""
    try:
        number = session.read("last_generation", more=" ")[0][0]
        return number, "".join(text.strip() for _, text in session.read("generation", more=" "))
    except StatementRefused:  # a queue that is being made
        return None


def use(session: Session, number: int) -> None:
    """Uses the packages of a generation in *session*, which has prepared no query yet."""
    session.generation = number
    session.queries = queries(number)


class Planned(NamedTuple):
    """The packages that a database is to have."""

    parts: tuple[Part, ...]
    answering: tuple[Answering, ...]
    """The features whose hooks are called."""
    new: tuple[Answering, ...]
    """Those of them that are to be noted."""

    @property
    def hash(self) -> str:
        """The hash of their text."""
        return fingerprint(self.parts, self.answering)

    def sources(self, number: int) -> list[str]:
        """Returns the statements that make them under a number."""
        made = packages.headers(number, self.parts, self.answering), packages.bodies(number, self.parts, self.answering)
        return [statement for each in made for statement in each]

    def switches(self, number: int) -> list[str]:
        """Returns the statements that put them into use."""
        return [numbered(statement, number) for statement in packages.triggers(*self.parts)]


def planned(there: Mapping[str, features.Row], known: Iterable[Part]) -> Planned:
    """Returns the packages for a database that has the features *there*, and is to have *known*.

    What it has of others is called as before.
    """
    known = tuple(known)
    named = {
        name: Answering(name, row.hooks, row.package)
        for name, row in there.items()
        if row.package and row.is_there and not row.is_ours
    }
    named |= {each.name: features.answering(each) for each in known}
    answering = tuple(named[name] for name in sorted(named))
    noted = {name: (row.package, row.hooks) for name, row in there.items()}
    new = tuple(each for each in answering if noted.get(each.name) != (each.package, each.hooks))
    return Planned((CORE, *(each for each in known if each.is_ours)), answering, new)


def renew(session: Session, known: Iterable[Part]) -> bool:
    """Makes the packages of this release, unless those in use are made of the same text. Returns whether it did.

    *known* are the features that the database is to have, as :func:`features.of_the_database` says. The caller keeps
    others from migrating. When it is cut nothing has changed, and what it has made goes later.
    """
    found = session.read("generation", more=" ")
    plan = planned(features.rows(session), known)
    if found and found[0][1].strip() == plan.hash:
        session.run(lambda t: _note(t, plan.new), point="migrate")
        use(session, found[0][0])
        return False
    number = session.run(lambda t: int(t.value("next_generation")))

    def make(transaction: Transaction) -> None:
        for statement in plan.sources(number):
            transaction.script(statement)

    def put_into_use(transaction: Transaction) -> None:
        for statement in plan.switches(number):
            transaction.script(statement)
        _note(transaction, plan.new)
        transaction.execute("set_generation", number, plan.hash)

    with held_signals():
        session.run(make, point="migrate", attempts=1)
        session.run(put_into_use, point="migrate", attempts=1)
    use(session, number)
    return True


def _note(transaction: Transaction, new: Iterable[Answering]) -> None:
    for each in new:
        transaction.execute("feature_answers", *note(each))


def note(answering: Answering) -> tuple[str, str, str]:
    """Returns the parameters of ``feature_answers``."""
    return answering.package, " ".join(sorted(answering.hooks)), answering.name


def drop_former(session: Session, *, locked: bool = False) -> int:
    """Drops packages that were in use before, once all connections of that time have ended. Returns how many.

    *locked*: the caller keeps others from migrating, so what has a later number is left of a migration that was cut. It
    takes the right to drop them; without that, and while another process is at it, none goes.
    """
    names = former(session, locked=locked)
    if not names or session.read("connections_of_before", more=" ")[0][0]:
        return 0

    def drop(transaction: Transaction) -> None:
        for name in names:  # bodies first: packages call each other
            transaction.script(f"DROP PACKAGE BODY {name}")
        for name in names:
            transaction.script(f"DROP PACKAGE {name}")

    try:
        session.run(drop, point="migrate", attempts=1)
    except (ConflictError, StatementRefused, AuthenticationError):
        return 0
    return len(names)


def former(session: Session, *, locked: bool = False) -> list[str]:
    """Returns the packages that were in use before; *locked* as in :func:`drop_former`."""
    in_use = current(session)
    numbers = {
        name: int(match[1]) for (name,) in session.read("numbered_packages") if (match := _NUMBERED.fullmatch(name))
    }
    found = [name for name, number in numbers.items() if number < in_use or (locked and number > in_use)]
    return found + [name for (name,) in session.read("former_packages", more=" ")]  # of other distributions
