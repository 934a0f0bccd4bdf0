"""The services of the engine that has a database: backup and restore, as gbak does them."""

from firebird.driver import connect_server, driver_config


def services_of(url):
    """Connects to the services of the engine that has the database, embedded or on a server.

    The driver takes the name of a host for that of a configuration, and without such a one the embedded engine's.
    """
    if url.embedded:
        return connect_server("", user=url.user or "SYSDBA")
    name = f"{url.host}/{url.port}"
    config = driver_config.get_server(name)
    if config is None:
        config = driver_config.register_server(name)
        config.host.value, config.port.value = url.host, str(url.port)
    return connect_server(name, user=url.user, password=url.password)
