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


def use(session: Session, number: int) -> None:
    """Uses the packages of a generation in *session*, which has prepared no query yet."""
    session.generation = number
    session.queries = queries(number)


def renew(session: Session, known: Iterable[Part]) -> bool:
    """Makes the packages of this release, unless those in use are made of the same text. Returns whether it did.

    *known* are the features that the database is to have, as :func:`features.of_the_database` says. What it has of
    others is called as before. The caller keeps others from migrating. When it is cut nothing has changed, and what it
    has made goes later.
    """
    found, there = session.read("generation", more=" "), features.rows(session)
    parts = (CORE, *(each for each in known if each.is_ours))
    named = {
        name: Answering(name, row.hooks, row.package)
        for name, row in there.items()
        if row.package and row.is_there and not row.is_ours
    }
    named |= {each.name: features.answering(each) for each in known}
    answering = tuple(named[name] for name in sorted(named))
    new = [
        each for each in answering if (there[each.name].package, there[each.name].hooks) != (each.package, each.hooks)
    ]
    text = fingerprint(parts, answering)
    if found and found[0][1].strip() == text:
        session.run(lambda t: _note(t, new), point="migrate")
        use(session, found[0][0])
        return False
    number = session.run(lambda t: int(t.value("next_generation")))

    def make(transaction: Transaction) -> None:
        made = (*packages.headers(number, parts, answering), *packages.bodies(number, parts, answering))
        for statement in made:
            transaction.script(statement)

    def put_into_use(transaction: Transaction) -> None:
        for statement in packages.triggers(*parts):
            transaction.script(numbered(statement, number))
        _note(transaction, new)
        transaction.execute("set_generation", number, text)

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
