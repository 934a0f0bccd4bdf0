"""Users of a database, and of the server of FBTASKS_TEST_URL."""

import secrets
from contextlib import closing, contextmanager
from dataclasses import replace
from urllib.parse import quote

import pytest

from fbtasks import FBTasks
from fbtasks.database import grants
from fbtasks.firebird import connections
from fbtasks.url import DatabaseURL


@contextmanager
def without_role(app):
    """The URL of the app's database for a user without rights. The embedded engine asks for no password."""
    if app.settings.url.embedded:
        yield replace(app.settings.url, user="ANN")
        return
    with closing(Users(app.settings.url.reveal())) as users:
        yield DatabaseURL.parse(users.add())


class Users:
    """Users of the server that live as long as a test."""

    def __init__(self, url):
        self.url = DatabaseURL.parse(url)
        self.admin = connections.connect(self.url)
        self.apps = []
        self.names = []

    def add(self, *roles, name=None):
        """The URL of a new user with these roles."""
        name = name or f"FBT_{secrets.token_hex(6).upper()}"
        password = secrets.token_hex(8)
        quoted = '"' + name.replace('"', '""') + '"'
        try:
            self._do(f"CREATE USER {quoted} PASSWORD '{password}'")
        except Exception as error:
            pytest.skip(f"the login of FBTASKS_TEST_URL may not create users: {error}")
        self.names.append(quoted)
        with self.owner().database.session() as session:
            for role in roles:
                grants.grant(session, role, name)
        login = f"{quote(name, safe='')}:{password}"
        return f"firebird://{login}@{self.url.host}:{self.url.port}/{self.url.database}"

    def owner(self):
        """An app whose user owns the database."""
        login = f"{quote(self.url.user, safe='')}:{quote(self.url.password, safe='')}"
        return self.app(f"firebird://{login}@{self.url.host}:{self.url.port}/{self.url.database}")

    def app(self, url):
        """An app at *url*, with three tasks."""
        app = FBTasks("test", url)
        app.task(name="add")(lambda a, b: a + b)
        app.task(name="length")(len)
        app.task(name="repeat")(lambda text, times: text * times)
        self.apps.append(app)
        return app

    def _do(self, statement):
        try:
            self.admin.execute_immediate(statement)
            self.admin.commit()
        except Exception:
            self.admin.rollback()
            raise

    def close(self):
        for app in self.apps:
            app.close()
        try:
            for name in self.names:
                self._do(f"DROP USER {name}")
        finally:
            self.admin.close()


@contextmanager
def with_role(app, role):
    """The URL of the app's database for a user with a role. The embedded engine asks for no password."""
    if app.settings.url.embedded:
        app.database.use(lambda session: grants.grant(session, role, role.upper()))
        yield replace(app.settings.url, user=role.upper())
        return
    with closing(Users(app.settings.url.reveal())) as users:
        yield users.add(role)


def viewer(app):
    """The URL of the app's database for a user who is a viewer."""
    return with_role(app, "viewer")
