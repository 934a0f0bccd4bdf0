"""The database of an app: connections, migrations, packages and rights, and statements of the caller's own."""
