"""The program ``fbtasks``: its commands by name, each in a module that is imported when the command is used.

``fbtasks --help`` imports none of them, which would take longer than all the rest.
"""

from __future__ import annotations

import importlib
from typing import Any, Final, NoReturn

import click

from fbtasks.cli.escapes import say
from fbtasks.cli.habits import HabitGroup
from fbtasks.errors import ConfigurationError, DatabaseReplaced, FBTasksError
from fbtasks.version import VERSION

COMMANDS: Final = {
    "worker": ("worker", "Run the tasks of an app until stopped."),
    "inspect": ("inspect", "Look at tasks, queues and workers."),
    "retry": ("tasks", "Put failed or cancelled tasks back into their queues."),
    "discard": ("tasks", "Delete finished tasks for good."),
    "cancel": ("tasks", "Cancel tasks: waiting ones at once; running ones are stopped by their worker."),
    "purge": ("tasks", "Delete all waiting tasks of a queue."),
    "prune": ("tasks", "Delete results and failures that have been kept long enough."),
    "health": ("health", "Check for monitoring: exit code 1 when a queue is not served or waits too long."),
    "call": ("calls", "Enqueue a task by its name and print its id."),
    "result": ("calls", "Print the result of a task as JSON."),
    "sql": ("sql", "Run SQL statements, at a prompt or from a pipe; read-only unless --write."),
    "migrate": ("database", "Create or update the tables of the queue."),
    "adopt": ("database", "Let workers run the tasks of a restored or moved database."),
    "grant": ("database", "Let users of a server enqueue, work or operate, and no more than that."),
}
"""The module of each command in this package, and the line that ``--help`` has for it."""

_EXIT_CODES: Final = {ConfigurationError: 2, DatabaseReplaced: 66}
"""Of errors that do not end with 1; 66 is EX_NOINPUT of ``sysexits.h``."""


class Commands(HabitGroup):
    """Imports a command when it is used. Turns errors of fbtasks into one message and exit code (see the reference)."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"fbtasks.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except FBTasksError as error:
            if ctx.params.get("debug"):
                _say_traceback(ctx)
            say(f"Error: {error}", err=True)
            ctx.exit(next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), 1))
        except (click.ClickException, click.Abort, click.exceptions.Exit, OSError):
            raise  # click answers these, a pipe that was closed among them
        except Exception as error:  # noqa: BLE001  # shown, and the exit code says it
            if ctx.params.get("debug"):
                _say_traceback(ctx)
            say(f"Error: {type(error).__name__}: {error}. With --debug the traceback is shown.", err=True)
            ctx.exit(1)


def _say_traceback(ctx: click.Context) -> NoReturn:
    import traceback

    say(traceback.format_exc().rstrip(), err=True)  # not raised: Python would print what the error says as it is
    ctx.exit(1)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(VERSION, prog_name="fbtasks")
@click.option("-A", "--app", "app_path", metavar="MODULE[:NAME]", help="The app, the same as behind the command.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(app_path: str | None, debug: bool) -> None:  # read by HabitGroup and by Commands.invoke
    """Background tasks whose queue is a table of your Firebird database."""
