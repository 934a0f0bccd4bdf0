"""The command ``fbtasks web``."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import webbrowser
from contextlib import AbstractContextManager
from functools import partial
from threading import Event
from typing import Any

import click

from fbtasks import FBTasks
from fbtasks.cli.options import DatabaseArgs, with_database
from fbtasks.cli.output import say
from fbtasks.database.starting import when_it_is_there
from fbtasks.errors import ConfigurationError, SchemaError
from fbtasks.features.web import dashboard, needs_extra
from fbtasks.system.threads import answering
from fbtasks.url import is_named_by_option


@click.command()
@with_database
@click.option("--host", default="127.0.0.1", help="The address to listen at. One that others reach needs a login.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8555, help="The port; 0: any that is free.")
@click.option("--demo", is_flag=True, help="Show a throw-away database with traffic.")
@click.option("--read-only", is_flag=True, help="Change nothing.")
@click.option("--hide-arguments", is_flag=True, help="Show no arguments, results, messages of errors, and logs.")
@click.option("--redact", metavar="WORD", multiple=True, help="Do not show what has this in its name, too.")
@click.option("--user-header", metavar="NAME", help="The header in which a proxy says who has logged in.")
@click.option("--trust-proxy", metavar="NETWORK", multiple=True, help="Answer this proxy alone, and believe it.")
@click.option("--open", "opens", is_flag=True, help="Open it in a browser.")
@click.option("--hash-password", is_flag=True, help="Ask for a password, print its hash for the environment, and end.")
def web(database: DatabaseArgs, demo: bool, hash_password: bool, **options: Any) -> None:
    """Serve the dashboard: what the queue holds and has done, in a browser."""
    with needs_extra():
        import waitress  # noqa: F401  # that all are there is said before anything is opened

        from fbtasks.features.web.security import hash_password as hashed
    if hash_password:
        click.echo(hashed(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)))
        return
    if demo and (database.app_path or is_named_by_option()):
        raise click.UsageError("--demo has a database of its own: leave out -A and --url.")
    ended = answering((signal.SIGTERM, signal.SIGINT), lambda *_: sys.exit(0))
    with ended, _demo() if demo else database.opened() as app:
        serve(app, **options)


def _demo() -> AbstractContextManager[FBTasks]:
    from fbtasks.features.web.demo import running

    return running()


def serve(
    app: FBTasks,
    *,
    host: str,
    port: int,
    read_only: bool,
    hide_arguments: bool,
    redact: tuple[str, ...],
    user_header: str | None,
    trust_proxy: tuple[str, ...],
    opens: bool,
) -> None:
    """Serves the dashboard of *app* until a signal ends it."""
    from waitress import create_server

    from fbtasks.features.web.app import LARGEST_FORM
    from fbtasks.features.web.security import Login
    from fbtasks.features.web.showing import REDACTED

    login = Login(host, user_header=user_header, proxies=trust_proxy)
    when_it_is_there(
        app.database,
        partial(app.database.make_ready, create=False),
        who="The dashboard",
        say=partial(say, err=True),
        wait=lambda seconds: not Event().wait(seconds),  # the signals that end it raise
    )
    if all(feature.name != "web" for feature in app.database.features):
        raise SchemaError(
            "the database has no tables for a dashboard yet: a worker of this release makes them when it starts, or "
            "fbtasks migrate -A MODULE."
        )
    application = dashboard(
        app,
        authorize=login,
        read_only=read_only,
        redact=(*REDACTED, *redact),
        arguments="hidden" if hide_arguments else "shown",
    )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        why = str(error.strerror or error).partition(" (")[0]  # behind it Python repeats the address
        raise ConfigurationError(
            f"--host {host} --port {port} cannot be listened at: {why}. Give a port that is free (0: any), and an "
            "address of this machine."
        ) from None
    server = create_server(
        login.behind(application),
        sockets=[listener],
        ident=None,
        max_request_body_size=LARGEST_FORM,  # else a gigabyte is read before anybody logs in
        clear_untrusted_proxy_headers=False,  # Login looks at them
        connection_limit=1000,  # an open page holds one
        channel_timeout=30,
        asyncore_use_poll=True,  # select() takes no more than 1024 files
    )
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # it warns when more browsers look than it has threads
    address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"
    say(f"The dashboard of {app.url} is at {address} until Ctrl-C.")
    if opens:
        webbrowser.open(address)
    server.run()
