"""Groups of commands: each command is imported when it is used, and words of Celery's are answered.

``--help`` of a group imports no command, which would take longer than all the rest. ``-A`` may stand before a command.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import click

from fbtasks.cli.commands import COMMANDS, OF_FEATURES, Table
from fbtasks.cli.output import APP
from fbtasks.errors import ConfigurationError, FBTasksError
from fbtasks.system.showing import command_line

URL: Final = "fbtasks.url"
"""The key of a context for the ``--url`` that stands anywhere on the command line."""


def group_options() -> list[click.Parameter]:
    """Returns ``-A`` and ``--url`` as they stand before a command."""
    said = "The {}, the same as behind the command."
    app = click.Option(["-A", "--app", "app_path"], metavar="MODULE[:NAME]", help=said.format("app"))
    return [app, click.Option(["--url"], metavar="URL", expose_value=False, help=said.format("database"))]


class CommandGroup(click.Group):
    """Imports each command when it is used, takes ``-A`` before it as well, and answers words of Celery's.

    *place*: the words before those of its commands, each with a space behind it.
    """

    def __init__(self, *args: Any, place: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.place = place

    def table(self, ctx: click.Context, name: str | None = None) -> dict[str, tuple[str, str]]:
        """Returns its commands by their names: the module of each, empty for a group, and its line of help.

        With those of other distributions where -A names an app with their features, which is imported for it, unless
        there is a command *name* without them.
        """
        found = dict(self._of(COMMANDS)) | dict(self._of(importlib.import_module(OF_FEATURES).COMMANDS))
        path = ctx.meta.get(APP)
        if path is None or name in found:
            return found
        from fbtasks.run.importing import import_app

        with suppress(FBTasksError):  # --help shows what there is without it, and a command says what is wrong
            for feature in import_app(path).features:
                found.update(self._of(feature.commands))
        return found

    def _of(self, table: Table) -> Iterator[tuple[str, tuple[str, str]]]:
        for module, lines in table.items():
            for place, line in lines.items():
                name = place.removeprefix(self.place)
                if place.startswith(self.place) and " " not in name:
                    yield name, (module, line)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of all commands."""
        return sorted(self.table(ctx))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command of that name."""
        found = self.table(ctx, cmd_name).get(cmd_name)
        if found is None:
            return None
        module, line = found
        if not module:
            return CommandGroup(cmd_name, help=line, place=f"{self.place}{cmd_name} ", params=group_options())
        try:
            command = getattr(importlib.import_module(module), cmd_name)
        except (ImportError, AttributeError) as error:
            raise _no_such(ctx, module, f"{self.place}{cmd_name}", str(error)) from error
        if not isinstance(command, click.Command):
            raise _no_such(ctx, module, f"{self.place}{cmd_name}", f"{cmd_name} is no command of click's")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in sorted(self.table(ctx).items())])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Returns the command and its arguments, with the ``-A`` that stands before it."""
        if not args[0].startswith("-") and not ctx.resilient_parsing and args[0] not in self.table(ctx, args[0]):
            raise click.UsageError(self._no_command(ctx, args[0]), ctx)
        name, command, rest = super().resolve_command(ctx, args)
        app_path = ctx.params.get("app_path") or ctx.find_root().params.get("app_path")
        if app_path is not None and not isinstance(command, click.Group):
            rest = ["-A", app_path, *rest]
        return name, command, rest

    def _no_command(self, ctx: click.Context, name: str) -> str:
        from fbtasks.tasks.celery_words import instead

        places = {"": ("command", "command of inspect"), "inspect ": ("command of inspect",)}.get(self.place, ())
        answer = instead(name, *places, known=self.list_commands(ctx))
        if places and name in CommandGroup(place="inspect ").table(ctx, name):
            answer = f": use {command_line('fbtasks inspect {}', name)}."
        said = f"No such command {name!r}{answer}"
        path = ctx.meta.get(APP)
        if path is not None:
            from fbtasks.run.importing import import_app

            import_app(path)  # raises what is wrong with an app that may have it
        elif not answer.startswith(":"):
            said += " Commands of an app's own features need -A APP."
        return said

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments of the group itself. What *args* have for commands is seen for its ``-A``."""
        for key, names in ((APP, ("-A", "--app")), (URL, ("--url",))):
            if (value := _option_in(args, *names)) is not None:
                ctx.meta[key] = value
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise no_option(error) from None


def _no_such(ctx: click.Context, module: str, place: str, why: str) -> Exception:
    """Returns the error for a line of a feature's ``commands`` that names no command."""
    from fbtasks.run.importing import import_app

    for feature in import_app(ctx.meta[APP]).features:
        if place in feature.commands.get(module, {}):
            return ConfigurationError(
                f"the feature {feature.name!r} says in commands that {module!r} has {place!r}, which cannot be "
                f"imported: {why}. It must be an attribute {place.rpartition(' ')[2]} of that module."
            )
    raise AssertionError(place)


def no_option(error: click.NoSuchOption) -> click.UsageError:
    """Returns the error for an option that does not exist, with what to use instead."""
    from fbtasks.tasks.celery_words import instead

    places = ["fbtasks"]
    known = [] if error.ctx is None else [name for param in error.ctx.command.params for name in param.opts]
    ctx = error.ctx
    while ctx is not None:
        places.append(f"fbtasks {ctx.info_name}")
        ctx = ctx.parent
    return click.UsageError(
        f"No such option {error.option_name!r}{instead(error.option_name, *places, known=known)}", error.ctx
    )


def _option_in(args: Sequence[str], *names: str) -> str | None:
    """Returns the value of the option of these *names* in *args*, which are not parsed yet."""
    for word, following in zip(args, [*args[1:], None], strict=False):
        if word == "--":
            return None
        for name in names:
            if word == name:
                return following
            behind = f"{name}=" if name.startswith("--") else name
            if word.startswith(behind):
                return word.removeprefix(behind)
    return None
