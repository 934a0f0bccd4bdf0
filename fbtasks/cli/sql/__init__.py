"""``fbtasks sql``: statements at a prompt, from the command line or from a pipe, through the engine of fbtasks."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import click

from fbtasks.cli.options import DatabaseArgs, json_option, with_database
from fbtasks.cli.output import say
from fbtasks.cli.sql import answers
from fbtasks.cli.sql.splitter import Splitter
from fbtasks.database.adhoc import Answer, Statements
from fbtasks.errors import FBTasksError
from fbtasks.system.threads import Background
from fbtasks.url import DatabaseURL

_PROMPT: Final = "SQL> "
_CONTINUED: Final = "CON> "
_QUIT: Final = frozenset({"quit", "exit", "\\q", ".quit", ".exit"})
_HELP: Final = frozenset({"help", "?", "\\?", ".help"})
_TABLES: Final = frozenset({"show tables", "\\d", ".tables"})
_SECRET: Final = re.compile(r"\bpassword\b", re.IGNORECASE)
_HISTORY: Final = 1000
_KILLED: Final = 130
"""The exit code of a program that Ctrl-C has ended."""
_TEXT: Final = """\
A statement ends with ';' and may have several lines. In EXECUTE BLOCK and in the definition of a procedure, function,
trigger or package it ends behind the END of the body; SET TERM is obeyed as well.

show tables     the tables and views
help            this text
quit, exit      leave; so does Ctrl-D
Ctrl-C          drops what has been typed, or cancels the statement that runs

{rights}"""
_READS: Final = "Only reading is allowed; with --write the database can be changed."
_WRITES: Final = "Each statement is committed at once: COMMIT is not needed, and ROLLBACK has nothing to undo."


@click.command()
@click.argument("given", metavar="[STATEMENT]", required=False)
@click.option("-c", "--command", "statement", metavar="STATEMENT", help="Run this and leave; several are cut at ';'.")
@click.option("--write", is_flag=True, help="Allow changes; each statement is committed at once.")
@click.option("--limit", type=click.IntRange(0), default=200, help="Show at most so many rows; 0: all.")
@json_option
@with_database
def sql(
    database: DatabaseArgs, given: str | None, statement: str | None, write: bool, limit: int, as_json: bool
) -> None:
    """Run SQL statements, at a prompt or from a pipe; read-only unless --write."""
    if given is not None and statement is not None:
        raise click.UsageError("give a statement as the argument or with -c, not both.")
    statement = given if statement is None else statement
    statements = Statements(database.app().settings.url, write=write)
    runner = _Runner(statements, limit or None, as_json)
    try:
        if statement is not None:
            runner.run_all(statement.splitlines())
        elif sys.stdin.isatty() and sys.stdout.isatty():
            _Prompt(statements.url, runner, _WRITES if write else _READS).run()
        else:
            runner.run_all(sys.stdin)
    finally:
        statements.close()


class _Runner:
    """Runs statements and prints their answers."""

    def __init__(self, statements: Statements, limit: int | None, as_json: bool) -> None:
        self._statements = statements
        self._limit = limit
        self._json = as_json

    def run(self, statement: str) -> None:
        """Runs one *statement*. Raises :class:`FBTasksError`, and :class:`KeyboardInterrupt` when it was cancelled."""
        if re.fullmatch(r"COMMIT(\s+WORK)?", statement, re.IGNORECASE):  # the last line of many a script
            return
        if " ".join(statement.lower().split()) in _TABLES:
            answer = _interruptible(self._statements.tables, self._statements)
        else:
            answer = _interruptible(lambda: self._statements.run(statement, self._limit), self._statements)
        answers.show(answer, as_json=self._json)

    def run_all(self, lines: Iterable[str]) -> None:
        """Runs what *lines* hold, and ends at the first error."""
        splitter = Splitter()
        for line in lines:
            if not splitter.pending and _command(line) in _QUIT:
                return
            for statement in splitter.feed(line):
                if _command(statement) in _QUIT:
                    return
                self.run(statement)
        rest = splitter.rest()
        if rest is not None:
            self.run(rest)


def _command(line: str) -> str:
    return " ".join(line.strip().rstrip(";").lower().split())


def _interruptible(work: Callable[[], Answer], statements: Statements) -> Answer:
    """Runs *work* in a thread, so that Ctrl-C is heard while the engine is at it. A second one ends this process."""
    ends: list[Answer | BaseException] = []
    ended = threading.Event()  # Thread.join() of Python 3.11 takes a thread for ended when it is interrupted

    def run() -> None:
        try:
            ends.append(work())
        except BaseException as error:  # noqa: BLE001  # raised again in the thread that waits
            ends.append(error)
        ended.set()

    Background(target=run, name="fbtasks-sql").start()
    try:
        ended.wait()
    except KeyboardInterrupt:
        statements.cancel()
        try:
            ended.wait()
        except KeyboardInterrupt:  # the engine does not answer
            os._exit(_KILLED)
        raise
    (end,) = ends
    if isinstance(end, BaseException):
        raise end
    return end


class _Prompt:
    """Reads statements from the terminal until the user leaves."""

    def __init__(self, url: DatabaseURL, runner: _Runner, rights: str) -> None:
        self._url = url
        self._runner = runner
        self._rights = rights
        self._splitter = Splitter()

    def run(self) -> None:
        """Prompts."""
        say(f"{self._url}\n{self._rights} Statements end with ';'. Try: help")
        with _history() as remember, _never_stopped(self._url):
            while True:
                try:
                    line = input(_CONTINUED if self._splitter.pending else _PROMPT)
                    remember(line)
                    if not self._take(line):
                        return
                except KeyboardInterrupt:
                    click.echo()
                    self._splitter.clear()
                except EOFError:
                    click.echo()
                    return

    def _take(self, line: str) -> bool:
        """Does what a *line* says. Returns False when it says to leave."""
        if not self._splitter.pending:
            word = _command(line)
            if word in _QUIT:
                return False
            if word in _HELP:
                click.echo(_TEXT.format(rights=self._rights))
                return True
            if word in _TABLES:
                line = f"{word};"
        for statement in self._splitter.feed(line):
            if _command(statement) in _QUIT:
                return False
            try:
                self._runner.run(statement)
            except FBTasksError as error:
                say(f"Error: {error}", err=True)
                self._splitter.clear()
                break
        return True


@contextmanager
def _history() -> Iterator[Callable[[str], None]]:
    """For the block: line editing, and a history kept in a file of the user's, without lines that name a password."""
    try:
        import readline
    except ImportError:  # Windows
        yield lambda _: None
        return
    path = Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")) / "fbtasks" / "sql_history"
    readline.set_auto_history(False)
    readline.set_history_length(_HISTORY)
    with suppress(OSError):
        readline.read_history_file(path)

    def remember(line: str) -> None:
        if line.strip() and not _SECRET.search(line):
            readline.add_history(line)

    try:
        yield remember
    finally:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)


@contextmanager
def _never_stopped(url: DatabaseURL) -> Iterator[None]:
    """For the block, Ctrl-Z does nothing on an embedded database.

    A process that is stopped while it has the file open holds up all others that do: the workers would wait.
    """
    names = ("SIGTSTP", "SIGTTIN", "SIGTTOU") if url.embedded else ()
    before = {name: signal.signal(getattr(signal, name), signal.SIG_IGN) for name in names if hasattr(signal, name)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)
