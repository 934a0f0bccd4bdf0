"""What the command line does with words of Celery's: ``-A`` may stand before the command; other words are answered."""

from __future__ import annotations

from typing import Any

import click


class HabitGroup(click.Group):
    """Commands that take ``-A`` before them as well, and say what to use for what they do not have."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command and its arguments, with the ``-A`` that stands before it."""
        command = self.get_command(ctx, args[0])
        if command is None and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(self._no_command(ctx, args[0]), ctx)
        name, command, rest = super().resolve_command(ctx, args)
        app_path = ctx.find_root().params.get("app_path")
        if app_path is not None and not isinstance(command, click.Group):
            rest = ["-A", app_path, *rest]
        return name, command, rest

    def _no_command(self, ctx: click.Context, name: str) -> str:
        from fbtasks.celery_words import COMMANDS, INSPECT_COMMANDS, instead

        root = ctx.parent is None
        words = COMMANDS if root else INSPECT_COMMANDS
        known = self.list_commands(ctx)
        inspect = self.get_command(ctx, "inspect") if root and name not in words else None
        if isinstance(inspect, click.Group) and (name in inspect.commands or name in INSPECT_COMMANDS):
            words = {name: INSPECT_COMMANDS.get(name, f"use fbtasks inspect {name}")}
        return f"No such command {name!r}{instead(name, words, known)}"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """The arguments of the group itself."""
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
    """The error for an option that does not exist, with what to use instead."""
    from fbtasks.celery_words import COMMAND_OPTIONS, instead

    words = dict(COMMAND_OPTIONS["fbtasks"])
    known = [] if error.ctx is None else [name for param in error.ctx.command.params for name in param.opts]
    ctx = error.ctx
    while ctx is not None:
        words.update(COMMAND_OPTIONS.get(ctx.info_name or "", {}))
        ctx = ctx.parent
    return click.UsageError(
        f"No such option {error.option_name!r}{instead(error.option_name, words, known)}", error.ctx
    )
