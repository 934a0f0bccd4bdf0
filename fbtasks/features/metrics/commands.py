"""The command ``fbtasks metrics``."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial

import click

from fbtasks.cli.options import DatabaseArgs, with_database
from fbtasks.cli.output import say, visible
from fbtasks.features.metrics import needs_extra
from fbtasks.system.threads import leaving


@click.command()
@with_database
@click.option("--host", default="127.0.0.1", help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8556, help="The port; 0: any that is free.")
@click.option("--once", is_flag=True, help="Print them, and end.")
def metrics(database: DatabaseArgs, host: str, port: int, once: bool) -> None:
    """Serve the metrics of the database to Prometheus."""
    with needs_extra():
        from prometheus_client import CollectorRegistry, generate_latest

        from fbtasks.features.metrics.operations import DatabaseMetrics
        from fbtasks.features.metrics.server import Server
    with database.opened() as app:
        app.database.maintains = False  # the one connection of single-user maintenance is for its administrator
        registry = CollectorRegistry()
        if once:
            found = DatabaseMetrics(app.database, lambda _: None)
            registry.register(found)
            text = generate_latest(registry).decode()
            click.echo(visible(text) if sys.stdout.isatty() else text, nl=False)
            if found.error is not None:
                raise found.error
            return
        tell = partial(say, err=True)
        registry.register(DatabaseMetrics(app.database, tell))
        server = Server("--port", host, port, registry)
        tell(f"Metrics of {app.url}: {server.url}")
        with suppress(SystemExit, KeyboardInterrupt), leaving():
            server.serve_forever()
