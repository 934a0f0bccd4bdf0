"""Tables of CHARACTER SET NONE, columns that lack letters, and URLs that name a character set."""

from contextlib import closing

import pytest
from support.capture import listen, logged
from support.draining import drain
from support.programs import command_line_in
from support.sql import execute, rows

from fbtasks import FBTasks
from fbtasks.errors import ConfigurationError, TaskDefinitionError
from fbtasks.features.sources import managing as subscriptions
from fbtasks.features.sources.store import texts
from fbtasks.features.sources.store.tables import VARCHAR, Column, Table
from fbtasks.firebird.driver.translate import translate

CYRILLIC = "WIN1251"
LEGACY = """
CREATE TABLE INBOX (ID INTEGER NOT NULL PRIMARY KEY, S VARCHAR(12) CHARACTER SET NONE,
    DATA VARCHAR(20) CHARACTER SET NONE, ERR {error})
"""
POLL = {"status": "S", "ready": "готов", "taken": "взят", "done": "сделан", "failed": "ошибка", "error": "ERR"}


def in_cyrillic(app):
    """A connection as the application's own programs have it, of which texts in NONE are in their character set."""
    return closing(app.connect(charset=CYRILLIC))


def fill(app, error):
    execute(app, LEGACY.format(error=error))
    with in_cyrillic(app) as connection, connection.cursor() as cursor:
        for number, (status, data) in enumerate(
            [("готов", "ёж"), ("готов", "плохо"), ("новый", "жук"), ("готов", "нет")]
        ):
            cursor.execute("INSERT INTO INBOX (ID, S, DATA) VALUES (?, ?, ?)", (number, status, data))
        connection.commit()


@pytest.mark.parametrize(
    ("error", "charset", "said"),
    [
        ("VARCHAR(40) CHARACTER SET NONE", CYRILLIC, "ValueError: это плохо: ? ?"),
        ("VARCHAR(17) CHARACTER SET NONE", CYRILLIC, "ValueError: это п"),
        ("BLOB SUB_TYPE TEXT CHARACTER SET WIN1252", "WIN1252", "ValueError: ??? ?????: ? é"),
        ("VARCHAR(40) CHARACTER SET UTF8", "UTF8", "ValueError: это плохо: 日 é"),
    ],
)
def test_statuses_conditions_and_errors_are_written_as_charset_says(app, error, charset, said):
    fill(app, error)
    seen = []

    @app.poll_table("INBOX", columns="DATA", when="DATA <> 'нет'", **POLL, charset=CYRILLIC, max_retries=0)
    def handle(row):
        seen.append(row.values["DATA"])
        if row.values["DATA"] == "плохо":
            raise ValueError("это плохо: 日 é")

    drain(app)
    drain(app)
    assert seen == ["ёж", "плохо"]
    with in_cyrillic(app) as connection, connection.cursor() as cursor:
        found = cursor.execute("SELECT S FROM INBOX ORDER BY ID").fetchall()
    assert [status for (status,) in found] == ["сделан", "ошибка", "новый", "готов"]
    with closing(app.connect(charset=charset)) as connection, connection.cursor() as cursor:
        ((text,),) = cursor.execute("SELECT ERR FROM INBOX WHERE ERR IS NOT NULL").fetchall()
    assert text == said
    assert rows(app, "SELECT * FROM QUEUE_POLL_FAILURE") == []


def test_the_condition_of_a_change_is_written_as_charset_says(app):
    execute(app, LEGACY.format(error="VARCHAR(10)"))
    listen(
        app, "INBOX", insert=True, columns=("DATA",), charset=CYRILLIC, when="new.S = 'готов' OR new.ERR = _UTF8 'ж'"
    )
    with in_cyrillic(app) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO INBOX VALUES (1, 'готов', 'ёж', '')")
        cursor.execute("INSERT INTO INBOX VALUES (2, 'новый', 'ёж', '')")
        cursor.execute("INSERT INTO INBOX VALUES (3, 'новый', 'уж', 'ж')")
        connection.commit()
    assert [change.new for change in logged(app)] == [{"ID": 1, "DATA": "ёж"}, {"ID": 3, "DATA": "уж"}]


TABLE = Table(
    "T",
    (
        Column("S", VARCHAR, length=6, charset="NONE"),
        Column("N S", VARCHAR, length=6, charset="NONE"),
        Column("U", VARCHAR, length=6, charset="UTF8", width=4),
    ),
    (),
    frozenset({"UTF8", CYRILLIC, "WIN1252"}),
)


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("S = 'a'", "S = 'a'"),
        ("U = 'ж'", "U = 'ж'"),
        ("s = 'ж'", "s = _WIN1251 x'e6'"),
        ("new.\"N S\" IN ('ж', 'a', 'é')", "new.\"N S\" IN (_WIN1251 x'e6', 'a', 'é')"),
        ("S = 'it''s ж' -- 'ж'", "S = _WIN1251 x'6974277320e6' -- 'ж'"),
        ("S = q'{ж}' AND U = _UTF8 'ж'", "S = _WIN1251 x'e6' AND U = _UTF8 'ж'"),
        ("/* ж */ S = 'a'", "/* ж */ S = 'a'"),
    ],
)
def test_texts_of_a_condition_are_those_of_the_columns_without_a_character_set(when, expected):
    assert texts.condition(when, CYRILLIC, TABLE, "poll_table") == expected


def test_texts_for_columns_without_a_character_set_need_one():
    with pytest.raises(
        TaskDefinitionError, match=r"'S' of 'T' has CHARACTER SET NONE.*on_change\(..., charset='WIN1252'"
    ):
        texts.condition("S = 'ж'", None, TABLE, "on_change")


@pytest.fixture
def western(url):
    """An app whose URL names a character set that lacks most letters."""
    with closing(FBTasks("приложение", f"{url}?charset=WIN1252")) as app:

        @app.task(name="задача", max_retries=0)
        def plain(text):
            if text == "бе":
                raise ValueError("Ошибка")
            return text + "ж"

        @app.task(name="сделка", max_retries=0, transactional=True, bind=True)
        def transactional(self, text):
            with self.connection.cursor() as cursor:
                cursor.execute("INSERT INTO T VALUES (ASCII_CHAR(233))")
                assert cursor.execute("SELECT A FROM T").fetchone() == ("é",)
            return plain(text)

        execute(app, "CREATE TABLE T (A CHAR(1) CHARACTER SET NONE)")
        yield app


def test_our_own_texts_travel_whole_whatever_the_url_says(western, tmp_path):
    app = western
    results = [app.tasks[name].delay(text) for name in ("задача", "сделка") for text in ("бе", "а")]
    drain(app)
    for failed, done in (results[:2], results[2:]):
        with pytest.raises(ValueError, match="Ошибка"):
            failed.get(timeout=5)
        assert done.get(timeout=5) == "аж"
    env = {"FBTASKS_URL": app.settings.url.reveal()}
    for arguments in (("inspect", "failed"), ("retry", "--all-failed")):
        said = command_line_in(tmp_path, env, *arguments)
        assert (said.returncode, said.stderr) == (0, ""), said.stderr
        assert "задача" in said.stdout or arguments[0] == "retry"
    drain(app)
    assert [each.status for each in results] == ["FAILURE", "SUCCESS", "FAILURE", "SUCCESS"]
    said = command_line_in(tmp_path, env, "sql", "SELECT A FROM T")
    assert "é" in said.stdout


def test_an_application_s_connection_is_of_the_url_s_character_set_and_enqueues_any_letters(western):
    app, seen = western, []
    app.on_event("order", name="событие")(lambda event: seen.append((event.data, event.order_key)))
    with app.database.session() as session:
        assert subscriptions.register(session, app.name, app.features["sources"].feeds()) == {}
    with app.connect() as connection:
        assert connection.charset == "WIN1252"
        result = app.tasks["задача"].using(connection).apply_async(("а" * 5000,), task_id="ключ")
        app.raise_event("order", {"a": "ж"}, using=connection, order_key="ж")
        app.silence(connection, "задача", "été")
        with connection.cursor() as cursor, pytest.raises(UnicodeEncodeError):
            cursor.execute("SELECT 'ж' FROM RDB$DATABASE")  # the application's own SQL
        connection.commit()
    drain(app)
    assert result.get(timeout=5) == "а" * 5000 + "ж"
    assert seen == [({"a": "ж"}, "ж")]


def test_letters_that_a_connection_does_not_have_are_told_with_the_remedy():
    try:
        "größe ж".encode("cp1252")
    except UnicodeEncodeError as error:
        said = str(translate(error))
    assert said == (
        "the database: 'größe ж' has letters that the connection's character set does not have. "
        "Use a connection of UTF8: leave charset out of the URL, or call app.connect(charset='UTF8')."
    )


def test_a_character_set_that_the_database_does_not_know_is_refused_at_once(url):
    refused = pytest.raises(ConfigurationError, match=r"knows no CHARACTER SET WIN125\. Correct charset")
    with closing(FBTasks("x", f"{url}?charset=WIN125")) as app, refused:
        app.task(name="t")(print).delay()
