"""What the code of an app says of sources, brought into its database, and what is listed of them there."""

from fbtasks.features.sources import managing, operations


def apply(app, **options):
    return managing.apply(app.database, app.name, app.features["sources"].feeds(), **options)


def diff(app):
    return managing.diff(app.database, app.name, app.features["sources"].feeds())


def register(app):
    """As a worker does at its start."""
    with app.database.session() as session:
        return managing.register(session, app.name, app.features["sources"].feeds())


def listed(app, feeds=()):
    return app.database.use(lambda session: operations.list_sources(session, feeds))


def inspected(app, feeds=()):
    return app.database.use(lambda session: operations.inspect_sources(session, feeds))
