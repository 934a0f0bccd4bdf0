"""Plain SQL on an app's database."""

from contextlib import contextmanager

from fbtasks.errors import ConflictError
from fbtasks.firebird.translate import translate


def rows(app, statement, *params):
    """All rows of a query."""
    with app.connect() as connection, connection.cursor() as cursor:
        return cursor.execute(statement, params).fetchall()


def one(app, statement, *params):
    """The first column of the first row."""
    return rows(app, statement, *params)[0][0]


@contextmanager
def held(app, table, *numbers):
    """Rows are locked by a transaction of plain SQL, as soon as they can be; the block gets a function that ends it."""
    with app.connect() as connection:
        cursor = connection.cursor()
        statement = f"SELECT ID FROM {table} WHERE ID = ? WITH LOCK SKIP LOCKED"
        while not all(cursor.execute(statement, (number,)).fetchall() for number in numbers):
            connection.rollback()
        yield connection.rollback  # at the latest that is done when the connection is closed


def execute(app, statement, *params):
    """Runs a statement and commits; again when another transaction was in its way, such as a heartbeat's.

    Returns the rows of a query.
    """
    with app.connect() as connection, connection.cursor() as cursor:
        while True:
            try:
                cursor.execute(statement, params)
                found = cursor.fetchall() if cursor.description else []
                connection.commit()
            except Exception as error:
                connection.rollback()
                if not isinstance(translate(error), ConflictError):
                    raise
            else:
                return found
