"""``fbtasks web``: it serves, says where, and ends without a trace."""

import inspect
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import ExitStack, closing
from dataclasses import fields
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.dashboards import serving
from support.programs import command_line, python
from support.proxy import before
from support.sql import one
from werkzeug.security import check_password_hash

from fbtasks import FBTasks
from fbtasks.features.web import dashboard
from fbtasks.features.web.actions.many import ON_MANY
from fbtasks.features.web.actions.one import ON_TASK
from fbtasks.features.web.query import REASONS, Query
from fbtasks.features.web.security import PASSWORD


def get(address, **headers):
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=30) as answer:
        return answer.read().decode()


def status_of_a_long_form(address):
    """The answer comes before the form is sent."""
    with closing(HTTPConnection(urlsplit(address).netloc, timeout=30)) as connection:
        connection.putrequest("POST", "/")
        connection.putheader("Content-Length", str(2 << 20))
        connection.endheaders()
        return connection.getresponse().status


@pytest.mark.acceptance
def test_it_serves_until_ctrl_c(project):
    project.write("@app.task\ndef f(order, pin): ...")
    project.run("call", "proj.f", "--args", "[4711, 1]", "-A", "proj")
    with serving("-A", "proj", "--redact", "pin", env={**project.env, "PWD": str(project.folder)}) as (
        process,
        address,
    ):
        assert "proj.f" in get(f"{address}tasks?q=state:ready")
        found = get(f"{address}tasks/1.json")
        assert '"4711"' in found
        assert "(not shown)" in found
        assert status_of_a_long_form(address) == 413
        with ExitStack() as idle:
            for _ in range(120):
                idle.enter_context(socket.create_connection((urlsplit(address).hostname, urlsplit(address).port)))
            assert get(f"{address}livez") == "ok\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


@pytest.mark.acceptance
def test_it_waits_for_its_server(project, url, wait_for):
    with closing(FBTasks("proj", url)) as app:
        app.migrate()
    with before(url) as proxy:
        proxy.refuse(True)
        with (project.folder / "said").open("w+") as said:
            command = [sys.executable, "-m", "fbtasks", "web", "--port", "0", "--url", proxy.url]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
            try:
                wait_for(lambda: proxy.refused > 3)
                proxy.refuse(False)
                address = re.search(r"http://\S+/", process.stdout.readline())[0]
                assert get(f"{address}readyz") == "ok\n"
                process.terminate()
                assert process.wait(30) == 0
            finally:
                process.kill()
                process.communicate()
            said.seek(0)
            text = said.read()
    assert text.count("cannot be reached") == text.count("The dashboard waits for that") == 1
    assert "The database is there after" in text


@pytest.mark.acceptance
def test_it_can_be_ended_while_it_waits():
    with socket.socket() as nobody:  # bound and not listening
        nobody.bind(("127.0.0.1", 0))
        url = f"firebird://ann:secret@127.0.0.1:{nobody.getsockname()[1]}//srv/x.fdb"
        command = [sys.executable, "-m", "fbtasks", "web", "--port", "0", "--url", url]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert "The dashboard waits for that, and tries again every few seconds." in process.stderr.readline()
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
            said = process.communicate()
    assert said == ("", "")


@pytest.mark.thorough
@pytest.mark.acceptance
@pytest.mark.embedded("the demo has a file of its own")
def test_the_demo_begins_with_a_past_and_leaves_nothing_behind(tmp_path, monkeypatch, wait_for):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with serving("--demo") as (process, address):
        found = json.loads(get(f"{address}overview.json?span=3h"))
        assert sum(point["succeeded"] > 0 for point in found["points"]) >= 39  # of three minutes
        assert len(found["backlog"]) >= 118
        assert all(row["succeeded"] for row in found["counters"])
        wait_for(lambda: re.search(r'href="/tasks/\d', get(f"{address}tasks?q=state:succeeded+name:shop.*")), 60)
        wait_for(lambda: "demo@" in get(f"{address}workers"))  # a look at workers is up to a second old
        assert list(tmp_path.glob("fbtasks-demo-*/demo.fdb"))
        process.terminate()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
    assert not list(tmp_path.glob("fbtasks-demo-*"))


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["--host", "0.0.0.0"], 2, "--host 0.0.0.0: other machines reach it, and there is no login."),
        (["--port", "1", "--host", "198.51.100.1"], 2, "there is no login"),
        (["--demo"], 2, "--demo has a database of its own"),
        (["--user-header", "X"], 2, "--user-header needs --trust-proxy"),
    ],
)
def test_what_cannot_be_served(url, capsys, monkeypatch, arguments, code, error):
    monkeypatch.delenv(PASSWORD, raising=False)
    assert command_line("web", "--url", url, *arguments) == code
    assert error in capsys.readouterr().err


def test_a_database_that_is_not_there_or_lacks_the_tables(own_app, tmp_path, capsys):
    assert command_line("web", "--url", f"firebird://{tmp_path}/none.fdb") == 1
    assert "there is no queue at" in capsys.readouterr().err
    assert not Path(tmp_path / "none.fdb").exists()
    with own_app.database.session() as session:
        session.sql("DELETE FROM QUEUE_FEATURE WHERE NAME = 'web'")
    assert command_line("web", "--url", own_app.settings.url.reveal()) == 1
    assert "has no tables for a dashboard yet" in capsys.readouterr().err
    assert one(own_app, "SELECT COUNT(*) FROM QUEUE_FEATURE WHERE NAME = 'web'") == 0


def test_a_port_that_is_taken(url, capsys, unused_port):
    assert command_line("web", "--url", url, "--port", str(unused_port)) == 2
    assert re.search(r"--port \d+ cannot be listened at: Address already in use. Give a port", capsys.readouterr().err)


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_a_hash_for_the_environment(capsys, monkeypatch):
    import io

    monkeypatch.setattr("click.prompt", lambda *_, **__: "open sesame")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert command_line("web", "--hash-password") == 0
    assert check_password_hash(capsys.readouterr().out.strip(), "open sesame")


PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "dashboard.md"


def test_the_page_has_all_options_and_all_that_is_searched_by():
    text = PAGE.read_text()
    options = text.partition("| option | default |")[2].partition("\n## ")[0]
    parameters = [*inspect.signature(dashboard).parameters][1:]
    assert re.findall(r"^\| `(\w+)` \|", options, re.MULTILINE) == parameters
    found = text.partition("## Search")[2].partition("\n## ")[0]
    named = {*re.findall(r"`(\w+)[:.]", found)}
    assert named >= {each.name for each in fields(Query)} - {"words"}
    assert {*REASONS} <= {*re.findall(r"`(?:why:)?(\w+)`", found)}


def test_the_page_has_all_that_may_be_allowed(app):
    table = PAGE.read_text().partition("| action | queue |")[2].partition("\n\n")[0]
    named = {*re.findall(r"`([\w.-]+)`", table)}
    assert named >= {*ON_TASK, *ON_MANY, "look", "run", "pause", "resume", "purge", "stop_worker"}
    sheets = {
        f"{sheet.name}.{act}" for each in app.database.features for sheet in each.sheets() for act in sheet.actions
    }
    assert {each for each in named if "." in each} <= sheets


def test_programs_that_show_nothing_import_nothing_for_it():
    code = "import sys, fbtasks.app, fbtasks.cli; print({'werkzeug', 'jinja2', 'waitress'} & {*sys.modules})"
    assert python(code).stdout == "set()\n"
