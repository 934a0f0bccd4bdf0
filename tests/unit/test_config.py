"""Settings are checked when they are made, and a URL's password is in no message."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fbtasks import FBTasks
from fbtasks.config import Settings
from fbtasks.errors import ConfigurationError, SchemaError
from fbtasks.system.checks import queue_name
from fbtasks.url import DatabaseURL, named_by_option, resolve_url

FILE = DatabaseURL("/data/queue.fdb")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("firebird:///data/queue.fdb", FILE),
        ("firebird:///a%20b/%C3%A9%23.fdb", DatabaseURL("/a b/é#.fdb")),
        ("firebird:///C:/data/queue.fdb", DatabaseURL("C:/data/queue.fdb")),
        ("firebird://host/alias", DatabaseURL("alias", "host")),
        ("firebird://host//srv/q.fdb", DatabaseURL("/srv/q.fdb", "host")),
        ("firebird://u:p%40%2F%3A@host:3051/alias", DatabaseURL("alias", "host", 3051, "u", "p@/:")),
        ("firebird://u@[::1]/alias", DatabaseURL("alias", "::1", user="u")),
        (
            "firebird://host/alias?role=R&charset=UTF8",
            DatabaseURL("alias", "host", options={"role": "R", "charset": "UTF8"}),
        ),
    ],
)
def test_a_url_names_a_database(text, url):
    assert DatabaseURL.parse(text) == url
    if url.password is None:
        assert DatabaseURL.parse(str(url)) == url


def test_the_connection_string():
    assert DatabaseURL.parse("firebird:///data/q.fdb").dsn == "/data/q.fdb"
    assert DatabaseURL.parse("firebird://h:3051//srv/q.fdb").dsn == "inet://h:3051//srv/q.fdb"
    assert DatabaseURL.parse("firebird://[::1]/alias").dsn == "inet://[::1]:3050/alias"
    assert FILE.embedded
    assert not DatabaseURL.parse("firebird://h/alias").embedded


@pytest.mark.parametrize(
    ("text", "rooted"),
    [
        ("firebird://h:3051/tmp/x.fdb?role=R", "firebird://h:3051//tmp/x.fdb?role=R"),
        ("firebird://u:p@h/srv/data/x.fdb", "firebird://u:***@h:3050//srv/data/x.fdb"),
        ("firebird://h//tmp/x.fdb", None),
        ("firebird://h/alias", None),
        ("firebird://h/../x.fdb", None),
        ("firebird:///tmp/x.fdb", None),
    ],
)
def test_a_relative_path_on_a_server_was_perhaps_meant_from_its_root(text, rooted):
    found = DatabaseURL.parse(text).rooted
    assert (found if found is None else str(found)) == rooted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "queue.fdb",
        "postgresql://host/db",
        "firebird://",
        "firebird:///data/",
        "firebird://host/",
        "firebird://host:port/alias",
        "firebird://host:99999/alias",
        "firebird:///data/q#1.fdb",
        "firebird:///data/q.fdb?colour=red",
        "firebird:///data/q.fdb?charset",
    ],
)
def test_what_is_no_url_of_ours_is_refused(text):
    with pytest.raises(ConfigurationError):
        DatabaseURL.parse(text)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("firebird://ANNA:secret@/data/q.fdb", "a user"),
        ("firebird://:3051/data/q.fdb", "a port"),
        ("firebird:///data/q.fdb?auth_plugins=Srp256&charset=UTF8", "auth_plugins="),
        ("firebird://ANNA@/data/q.fdb?role=CLERK", "a user and role="),
    ],
)
def test_a_login_that_an_embedded_file_would_not_heed_is_refused(text, given):
    """There everybody is SYSDBA."""
    with pytest.raises(ConfigurationError, match=f" has {given}, and names no server") as caught:
        DatabaseURL.parse(text)
    assert "secret" not in str(caught.value)


@given(st.text())
@example("firebird://\u2100/x")
@example("firebird://[/")
@example("firebird://h/a?charset=%ff")
@example("~\x00")
def test_parsing_raises_only_errors_of_ours(rest):
    for text in (rest, f"firebird://{rest}", f"firebird://host/{rest}"):
        try:
            url = DatabaseURL.parse(text)
        except ConfigurationError:
            continue
        assert url.database
        str(url)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
@example("a?b=c&d#e%25 f")
def test_the_path_of_a_file_comes_back(name):
    path = f"/data/{name.strip()}.fdb"
    assert DatabaseURL.parse(str(DatabaseURL(path))) == DatabaseURL(path)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
@example("a&b=c")
@example("a+b")
def test_the_options_come_back(role):
    url = DatabaseURL("alias", "host", options={"role": role})
    assert DatabaseURL.parse(str(url)) == url


BEHIND_A_LOGIN = [
    "firebird://ann:{}@db.example/x",
    "firebird://ann:{}@db.example:3051//srv/x.fdb?role=R",
    "firebird://ann:{}@db.example",
    "firebird://ann:{}@db.example:port/x",
    "firebird://ann:{}@db.example/x?chrset=UTF8",
    "firebird://ann:{}@db.example/x?role",
    "firebird://ann:{}@db.example/x#1",
    "firebird:///ann:{}@db.example/x",
    "firebird:/ann:{}@db.example/x",
    "firebird:ann:{}@db.example/x",
    "firebird//ann:{}@db.example/x",
    "postgresql://ann:{}@db.example/x",
    "ann:{}@db.example:/srv/x.fdb",
]
WITHOUT_A_HOST = [
    "firebird://ann:{}",
    "firebird://ann:{}/",
    "firebird://db.example/x?password={}",
]
PIECES = ["Zq7", "12", ":", "/", "?", "#", "%", "%40", "[", "]", "=", "&", " ", "\\", "\n", "é", "\u2100"]


def parsed(text):
    """The message when *text* is refused, and what is shown of it when it is not."""
    try:
        url = DatabaseURL.parse(text)
    except ConfigurationError as error:
        return str(error), ""
    return "", str(url) + repr(url) + url.dsn


@example("ann:{}@db.example:/srv/x.fdb", ["//"], 1)
@example("firebird://ann:{}@db.example/x", ["12", "?"], 1)
@example("firebird://ann:{}@db.example/x", ["12", "#"], 2)
@example("firebird://ann:{}@db.example/x", ["@", "\u2100"], 0)
@example("firebird://ann:{}@db.example/x", ["/", "@"], 1)
@given(st.sampled_from(BEHIND_A_LOGIN), st.lists(st.sampled_from([*PIECES, "@"]), max_size=4), st.integers(0, 4))
def test_no_part_of_a_password_is_in_a_message_or_in_what_is_shown(form, pieces, at):
    pieces.insert(at, "Zq7")
    message, shown = parsed(form.format("".join(pieces)))
    assert "Zq7" not in message + shown


@example("firebird://ann:{}", ["?", "="])
@example("firebird://db.example/x?password={}", ["=", ":"])
@given(st.sampled_from(WITHOUT_A_HOST), st.lists(st.sampled_from(PIECES), max_size=4))
def test_nor_where_the_host_was_forgotten(form, pieces):
    """Digits alone behind a host are its port."""
    assume(form.startswith("firebird://ann") or "&" not in pieces)  # another option begins there
    message, _ = parsed(form.format("".join(["Zq7", *pieces])))
    assert "Zq7" not in message


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("firebird://u:SECRET@db.example:port/x", "firebird://u:***@db.example:port/x"),
        ("firebird://db.example:3050/x?chrset=UTF8&role=R", "firebird://db.example:3050/x?chrset=***&role=R"),
        ("mysql://u:SECRET@db.example/x", "mysql://u:***@db.example/x"),
        ("mysql://u:SECRET@[::1]:1/y", "mysql://u:***@[::1]:1/y"),
        ("u:SECRET@host/x", "u:***@host/x"),
        ("firebird://u:SECRET", "firebird://u:***"),
        ("firebird://[::1]/", "firebird://[::1]/"),
        ("firebird:///srv/x/", "firebird:///srv/x/"),
    ],
)
def test_of_a_refused_url_all_but_the_password_is_shown(text, shown):
    with pytest.raises(ConfigurationError) as caught:
        DatabaseURL.parse(text)
    assert str(caught.value).startswith(f"'{shown}' ") or str(caught.value).startswith(f"'{shown}': ")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("/srv/my shop.fdb", "firebird:///srv/my%20shop.fdb"),
        ("queue.fdb", "firebird:///work/queue.fdb"),
        ("./data/queue", "firebird:///work/data/queue"),
        ("localhost:/srv/x.fdb", "firebird://localhost//srv/x.fdb"),
        ("db.example/3051:/srv/x.fdb", "firebird://db.example:3051//srv/x.fdb"),
        ("[::1]:shop", "firebird://[::1]/shop"),
        ("ann:SECRET@db.example:/srv/x.fdb", "firebird://ann:***@db.example//srv/x.fdb"),
        ("ann@db.example:shop", "firebird://ann@db.example/shop"),
        ("shop", None),
        ("mysql://db.example/x", None),
    ],
)
def test_how_others_name_a_database_is_answered_with_the_url_that_was_meant(text, meant, monkeypatch):
    monkeypatch.setattr("os.getcwd", lambda: "/work")
    with pytest.raises(ConfigurationError) as caught:
        DatabaseURL.parse(text)
    _, asked, answer = str(caught.value).partition("Did you mean ")
    assert (answer or None) == (meant and f"{meant}?")
    assert bool(asked) == (meant is not None)
    if meant is not None:
        DatabaseURL.parse(meant)


def test_the_password_is_in_no_representation():
    url = DatabaseURL.parse("firebird://u:SECRET@host/alias")
    assert url.password == "SECRET"
    assert "SECRET" not in repr(url) + str(url)
    assert (url.option, FILE.option) == (", with the same URL", " --url firebird:///data/queue.fdb")
    settings = Settings("test", url=url, signing_key=(b"KEYKEY",))
    assert "SECRET" not in repr(settings)
    assert "KEYKEY" not in repr(settings)


def test_the_url_is_that_of_the_command_line_then_of_the_environment_then_of_the_code(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FBTASKS_URL", raising=False)
    assert resolve_url(None) == DatabaseURL(str(tmp_path / "fbtasks.fdb"))
    assert resolve_url("firebird:///data/queue.fdb") == FILE
    monkeypatch.setenv("FBTASKS_URL", "firebird://host/alias")
    for text in (None, "firebird:///data/queue.fdb"):
        assert resolve_url(text) == DatabaseURL("alias", "host")
    with named_by_option("firebird://other/alias"):
        assert resolve_url("firebird:///data/queue.fdb") == DatabaseURL("alias", "other")
        with named_by_option(None):
            assert resolve_url(None) == DatabaseURL("alias", "other")
    assert resolve_url(None) == DatabaseURL("alias", "host")


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_url_is_an_error_that_says_where_it_is(monkeypatch, empty):
    monkeypatch.delenv("FBTASKS_URL", raising=False)
    with pytest.raises(ConfigurationError, match=r"^the url is empty"):
        FBTasks("a", empty)
    monkeypatch.setenv("FBTASKS_URL", empty)
    with pytest.raises(ConfigurationError, match=r"^FBTASKS_URL: the url is empty"):
        FBTasks("a", "firebird:///data/queue.fdb")
    with named_by_option(empty), pytest.raises(ConfigurationError, match=r"^--url: the url is empty"):
        FBTasks("a")


def test_where_two_urls_differ_a_line_says_which_is_used(monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("FBTASKS_URL", "firebird://ann:SECRET@host/alias")
    assert resolve_url(None).note == ""
    assert resolve_url("firebird://ann:SECRET@host:3050/alias").note == ""
    note = (
        "the database is firebird://ann:***@host:3050/alias, as FBTASKS_URL says; the code names {}, and that is not "
        "used"
    )
    assert resolve_url("firebird:///data/queue.fdb").note == note.format("firebird:///data/queue.fdb")
    assert resolve_url("/data/queue.fdb").note == note.format("'/data/queue.fdb'")
    with named_by_option("firebird:///a.fdb"):
        assert resolve_url("firebird:///b.fdb").note == (
            "the database is firebird:///a.fdb, as --url says; FBTASKS_URL names firebird://ann:***@host:3050/alias "
            "and the code names firebird:///b.fdb, and these are not used"
        )
    monkeypatch.setenv("FBTASKS_URL", f"firebird://{tmp_path}/a.fdb")
    app = FBTasks("shop", f"firebird://{tmp_path}/b.fdb")
    assert app.url == f"firebird://{tmp_path}/a.fdb"
    for _ in range(2):
        with pytest.raises(SchemaError):
            app.AsyncResult(1).ready()
    assert caplog.messages == []  # nothing was opened
    app.migrate()
    app.close()
    app.migrate()
    app.close()
    assert [text for text in caplog.messages if "FBTASKS_URL" in text] == [f"App 'shop': {app.settings.url.note}."]


def test_an_app_shows_its_url_without_the_password():
    url = "firebird://ann:SECRET@db.example:3051//srv/x.fdb"
    assert FBTasks("a", DatabaseURL.parse(url)).url == url.replace("SECRET", "***")


@pytest.mark.parametrize("name", ["", ".x", "a b", "é", "q" * 64, "a\n", None])
def test_what_is_no_queue_name(name):
    assert queue_name("queue", "_mail.high:eu-1") == "_mail.high:eu-1"
    assert queue_name("queue", "9" * 63) == "9" * 63
    with pytest.raises(ConfigurationError, match="is not a queue name"):
        queue_name("queue", name)


def test_only_an_embedded_database_is_migrated_unasked():
    server = DatabaseURL("alias", "host")
    assert Settings("test", url=FILE).migrates
    assert not Settings("test", url=server).migrates
    assert Settings("test", url=server, auto_migrate=True).migrates
    assert not Settings("test", url=FILE, auto_migrate=False).migrates
