"""Transactions in limbo: prepared in a two-phase commit, whose program has died then."""

import contextlib

from firebird.driver.types import DbInfoCode

from .programs import program

_PREPARE = """
import os, sys
from fbtasks import FBTasks

connection = FBTasks("two phases", sys.argv[1]).connect()
for statement in sys.argv[2:]:
    connection.cursor().execute(statement)
connection.main_transaction._tra.prepare()
os._exit(0)  # neither phase two nor a rollback
"""


def prepare(url, *statements):
    """Leaves a transaction in limbo that has run *statements*."""
    program(_PREPARE, url, *statements)


def end_limbo(app, how):
    """Ends the transaction in limbo, as an operator does with gfix."""
    with contextlib.closing(app.connect()) as connection:
        (number,) = connection.info.get_info(DbInfoCode.LIMBO)
        getattr(connection._att.reconnect_transaction(number.to_bytes(8, "little")), how)()
