"""``fbtasks sql``: statements from the command line or from a pipe, through the engine of fbtasks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final

import click

from fbtasks.cli.options import Command, command
from fbtasks.cli.sql import answers
from fbtasks.cli.sql.splitter import statements as statements_of
from fbtasks.database.adhoc import Answer, Statements
from fbtasks.system.threads import Background

_KILLED: Final = 130
"""The exit code of a program that Ctrl-C has ended."""
_COMMIT: Final = re.compile(r"COMMIT(\s+WORK)?", re.IGNORECASE)
"""The last line of many a script: what was before it is committed."""
_QUIT: Final = re.compile(r"QUIT|EXIT", re.IGNORECASE)


@command
@click.argument("given", metavar="[STATEMENT]", required=False)
@click.option("-c", "--command", "statement", metavar="STATEMENT", help="Run this; several are cut at ';'.")
@click.option("--write", is_flag=True, help="Allow changes; each statement is committed at once.")
@click.option("--limit", type=click.IntRange(0), default=200, help="Show at most so many rows; 0: all.")
def sql(command: Command, given: str | None, statement: str | None, write: bool, limit: int) -> None:
    """Run SQL statements, given or from a pipe; read-only unless --write."""
    if given is not None and statement is not None:
        raise click.UsageError("give a statement as the argument or with -c, not both.")
    script = given if statement is None else statement
    if script is None and sys.stdin.isatty():
        raise click.UsageError('give a statement: fbtasks sql "SELECT ..."; or a script: fbtasks sql < FILE')
    statements = Statements(command.app.settings.url, write=write)
    try:
        for each in statements_of(sys.stdin.read() if script is None else script):
            if _QUIT.fullmatch(each):
                break
            if not _COMMIT.fullmatch(each):
                answer = _interruptible(lambda each=each: statements.run(each, limit or None), statements)  # type: ignore[misc]
                answers.show(answer, as_json=command.as_json)
    finally:
        statements.close()


def _interruptible(work: Callable[[], Answer], statements: Statements) -> Answer:
    """Runs *work* in a thread, so that Ctrl-C is heard while the engine is at it. A second one ends this process."""
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001  # raised again in the thread that waits
            answer.set_exception(error)

    Background(target=run, name="fbtasks-sql").start()
    try:
        return answer.result()
    except KeyboardInterrupt:
        statements.cancel()
        try:
            wait([answer])  # before the connection is closed
        except KeyboardInterrupt:  # the engine does not answer
            os._exit(_KILLED)
        raise
