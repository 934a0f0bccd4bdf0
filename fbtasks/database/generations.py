"""The packages of the queue: made under a new number, put into use, and dropped when no connection can know them.

None is replaced. A connection goes on with what it has prepared, and with the triggers that it has loaded; what is not
committed may be loaded by others; and to replace what others prepare at that moment can abort the process. New names do
none of that.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from typing import Final

from fbtasks.database import packages
from fbtasks.database.hooks import Answering
from fbtasks.database.packages import queries
from fbtasks.database.schema import numbered
from fbtasks.errors import AuthenticationError, ConflictError, StatementRefused
from fbtasks.firebird.session import Session, Transaction
from fbtasks.firebird.signals import held_signals

_NUMBERED: Final = re.compile(r"FBTASKS_\w+_(\d+)")


@cache
def fingerprint(features: tuple[Answering, ...]) -> str:
    """Returns the hash of the packages and triggers of this release, in a database that has *features*."""
    text = "\n".join((*packages.headers(0, features), *packages.bodies(0, features), *packages.triggers()))
    return hashlib.sha256(text.encode()).hexdigest()


def features(session: Session) -> tuple[Answering, ...]:
    """Returns the features of the database whose packages are there: not only those that this process knows."""
    found = session.read("features", more=" ")
    return tuple(Answering(name, frozenset(hooks.split()), package) for name, hooks, package in found)


def current(session: Session) -> int:
    """Returns the number of the packages in use; 0 when there are none yet."""
    try:
        return int(session.read("generation", more=" ")[0][0])
    except (StatementRefused, IndexError):  # a queue that is being made, or one of a former release, or none
        return 0


def use(session: Session, number: int) -> None:
    """Has the queries of *session* name the packages of a generation. None of them has been prepared there yet."""
    session.generation = number
    session.queries = queries(number)


def renew(session: Session, new: Iterable[Answering] = ()) -> bool:
    """Makes the packages of this release, unless those in use are made of the same text. Returns whether it did.

    *new* are features that the database is to call from then on. The caller keeps others from migrating. When it is cut
    nothing has changed, and what it has made goes later.
    """
    found, named = session.read("generation", more=" "), {each.name: each for each in (*features(session), *new)}
    known = tuple(named[name] for name in sorted(named))
    if found and found[0][1].strip() == fingerprint(known):
        session.run(lambda t: _note(t, new), point="migrate")
        use(session, found[0][0])
        return False
    number = session.run(lambda t: int(t.value("next_generation")))

    def make(transaction: Transaction) -> None:
        for statement in (*packages.headers(number, known), *packages.bodies(number, known)):
            transaction.script(statement)

    def put_into_use(transaction: Transaction) -> None:
        for statement in packages.triggers():
            transaction.script(numbered(statement, number))
        _note(transaction, new)
        transaction.execute("set_generation", number, fingerprint(known))

    with held_signals():
        session.run(make, point="migrate", attempts=1)
        session.run(put_into_use, point="migrate", attempts=1)
    use(session, number)
    return True


def _note(transaction: Transaction, new: Iterable[Answering]) -> None:
    for each in new:
        transaction.execute("feature_answers", each.package, " ".join(sorted(each.hooks)), each.name)


def drop_former(session: Session, *, locked: bool = False) -> int:
    """Drops packages that were in use before, once all connections of that time have ended. Returns how many.

    *locked*: the caller keeps others from migrating, so what has a later number is left of a migration that was cut. It
    takes the right to drop them; without that, and while another process is at it, none goes.
    """
    in_use = current(session)
    numbers = {
        name: int(match[1]) for (name,) in session.read("numbered_packages") if (match := _NUMBERED.fullmatch(name))
    }
    former = [name for name, number in numbers.items() if number < in_use or (locked and number > in_use)]
    former += [name for (name,) in session.read("former_packages", more=" ")]  # of features of other distributions
    if not former or session.read("connections_of_before", more=" ")[0][0]:
        return 0

    def drop(transaction: Transaction) -> None:
        for name in former:  # bodies first: packages call each other
            transaction.script(f"DROP PACKAGE BODY {name}")
        for name in former:
            transaction.script(f"DROP PACKAGE {name}")

    try:
        session.run(drop, point="migrate", attempts=1)
    except (ConflictError, StatementRefused, AuthenticationError):
        return 0
    return len(former)
