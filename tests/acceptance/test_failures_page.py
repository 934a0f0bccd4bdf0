"""The page "Be told of failures": its program, with a mail server of the test."""

import re
import socketserver
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.sql import one

from fbtasks import FBTasks

pytestmark = pytest.mark.acceptance

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "failures.md"
TASKS = """

@app.task(max_retries=0)
def invoice(n):
    raise ValueError(f"no paper {n}")

@app.task(max_retries=0)
def ship(n):
    raise LookupError("no ship")
"""


class Mail(socketserver.StreamRequestHandler):
    """Takes mails as an SMTP server does."""

    def handle(self):
        self.say("220 here")
        while line := self.rfile.readline().decode().strip().upper():
            if line == "DATA":
                self.say("354 go on")
                text = ""
                while (part := self.rfile.readline().decode()) != ".\r\n":
                    text += part.replace("\r\n", "\n")
                self.server.mails.append(text)
            self.say("221 bye" if line == "QUIT" else "250 ok")

    def say(self, text):
        self.wfile.write(f"{text}\r\n".encode())


@contextmanager
def mail_server():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mail) as server:
        server.daemon_threads, server.mails = True, []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def program(port, **changes):
    """The program of the page, which sends to this port, and waits for a second where the page waits for a minute."""
    source = re.search(r"```python\n# alerts.py\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    for old, new in {'"localhost"': f'"127.0.0.1", {port}', "wait=60": "wait=1", **changes}.items():
        assert old in source
        source = source.replace(old, new)
    return source + TASKS


def test_failures_are_mailed_once_for_each_task_with_their_number(project, url):
    with mail_server() as server:
        (project.folder / "proj.py").write_text(program(server.server_address[1]))
        app = FBTasks("caller", url)
        for n in range(5):
            app.send_task("proj.invoice", (n,))
        app.send_task("proj.ship", (1,))
        project.run("worker", "-A", "proj", "-c", "2", "-P", "threads", "--burst")
        subjects = sorted(re.search("Subject: (.*)", mail)[1] for mail in server.mails)
        assert subjects == ["proj.invoice failed: 5 in the last minute", "proj.ship failed: 1 in the last minute"]
        assert any("ValueError: no paper" in mail and "fbtasks inspect failed --name" in mail for mail in server.mails)
    app.close()


def test_a_mail_that_cannot_be_sent_is_not_reported(project, url):
    with mail_server() as server:
        port = server.server_address[1]
    (project.folder / "proj.py").write_text(program(port, **{"max_retries=20": "max_retries=0"}))
    app = FBTasks("caller", url)
    app.send_task("proj.ship", (1,))
    project.run("worker", "-A", "proj", "-c", "1", "-P", "threads", "--burst")
    failed = "SELECT COUNT(*) FROM QUEUE_HISTORY WHERE NAME = 'proj.report' AND STATE = 11"
    assert one(app, failed) == 1
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 0
    app.close()
