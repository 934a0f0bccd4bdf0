"""Groups of commands: each command is imported when it is used, and words of Celery's are answered.

``--help`` of a group imports no command, which would take longer than all the rest. ``-A`` may stand before a command.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from fbtasks.cli.commands import INSPECT, LIMITS, SCHEDULES, SUBSCRIPTIONS


class CommandGroup(click.Group):
    """Imports each command when it is used, takes ``-A`` before it as well, and answers words of Celery's.

    *table* has the module of each command, where it is an attribute of its name, and its line of help.
    """

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*args, **options)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Returns the names of all commands."""
        return sorted(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Imports the command of that name."""
        if cmd_name not in self.table:
            return None
        module = importlib.import_module(f"fbtasks.{self.table[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.table[name][1]) for name in self.list_commands(ctx)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command and its arguments, with the ``-A`` that stands before it."""
        if args[0] not in self.table and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(self._no_command(ctx, args[0]), ctx)
        name, command, rest = super().resolve_command(ctx, args)
        app_path = ctx.find_root().params.get("app_path")
        if app_path is not None and not isinstance(command, click.Group):
            rest = ["-A", app_path, *rest]
        return name, command, rest

    def _no_command(self, ctx: click.Context, name: str) -> str:
        from fbtasks.tasks.celery_words import COMMANDS, INSPECT_COMMANDS, instead

        words = COMMANDS if ctx.parent is None else INSPECT_COMMANDS if self.table is INSPECT else {}
        if (
            self.table not in (SUBSCRIPTIONS, SCHEDULES, LIMITS)
            and name not in words
            and (name in INSPECT or name in INSPECT_COMMANDS)
        ):
            words = {name: INSPECT_COMMANDS.get(name, f"use fbtasks inspect {name}")}
        return f"No such command {name!r}{instead(name, words, self.list_commands(ctx))}"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments of the group itself."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise _no_option(error) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            raise _no_option(error) from None
        except click.MissingParameter as error:
            if error.ctx is not None and error.ctx.info_name == "purge":
                raise click.UsageError(
                    f"{error.format_message()} One queue is purged at a time; they are in: fbtasks inspect queues",
                    error.ctx,
                ) from None
            raise


def _no_option(error: click.NoSuchOption) -> click.UsageError:
    """Returns the error for an option that does not exist, with what to use instead."""
    from fbtasks.tasks.celery_words import COMMAND_OPTIONS, instead

    words = dict(COMMAND_OPTIONS["fbtasks"])
    known = [] if error.ctx is None else [name for param in error.ctx.command.params for name in param.opts]
    ctx = error.ctx
    while ctx is not None:
        words.update(COMMAND_OPTIONS.get(ctx.info_name or "", {}))
        ctx = ctx.parent
    return click.UsageError(
        f"No such option {error.option_name!r}{instead(error.option_name, words, known)}", error.ctx
    )
