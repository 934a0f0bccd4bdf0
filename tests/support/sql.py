"""Plain SQL on an app's database."""


def rows(app, statement, *params):
    """All rows of a query."""
    with app.connect() as connection, connection.cursor() as cursor:
        return cursor.execute(statement, params).fetchall()


def one(app, statement):
    """The first column of the first row."""
    return rows(app, statement)[0][0]


def execute(app, statement, *params):
    """Runs a statement and commits."""
    with app.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement, params)
        connection.commit()
