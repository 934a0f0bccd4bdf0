"""The program ``fbtasks``."""

from __future__ import annotations

from typing import Any, Final

import click

from fbtasks.cli.groups import URL, CommandGroup, group_options, no_option
from fbtasks.cli.output import say
from fbtasks.errors import ConfigurationError, DatabaseReplaced, FBTasksError
from fbtasks.system.descriptors import fill_standard
from fbtasks.system.showing import brief
from fbtasks.system.threads import end_by_signals
from fbtasks.url import is_named_by_option, named_by_option, resolve_url
from fbtasks.version import VERSION

_EXIT_CODES: Final = {ConfigurationError: 2, DatabaseReplaced: 66}
"""Of errors that do not end with 1; 66 is EX_NOINPUT of ``sysexits.h``."""


class Program(CommandGroup):
    """The commands of ``fbtasks``. Turns errors of fbtasks into one message and an exit code (see the reference)."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Runs the program."""
        fill_standard()
        end_by_signals()
        return super().main(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            with named_by_option(ctx.meta.get(URL)):
                if is_named_by_option():
                    resolve_url(None)  # what is wrong with it is not said of the module of an app
                return super().invoke(ctx)
        except click.NoSuchOption as error:
            raise no_option(error) from None
        except Exception as error:
            ours = isinstance(error, FBTasksError)
            if not ours and isinstance(error, click.ClickException | click.Abort | click.exceptions.Exit | OSError):
                raise  # click answers these, a pipe that was closed among them
            if ctx.params.get("debug"):
                import traceback

                say(traceback.format_exc().rstrip(), err=True)  # Python would print what the error says as it is
                ctx.exit(1)
            foreign = f"{type(error).__name__}: {brief(error)}. With --debug the traceback is shown."
            said = str(error) if ours else foreign
            say(f"Error: {said}", err=True)
            ctx.exit(next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), 1))


@click.group(
    cls=Program, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}, params=group_options()
)
@click.version_option(VERSION, prog_name="fbtasks")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(app_path: str | None, debug: bool) -> None:  # read by CommandGroup and by Program
    """Background tasks whose queue is a table of your Firebird database."""
