"""What dashboards that hide arguments, or secrets, show nowhere: looked for on every page that another one leads to."""

import json
import logging
import re

import pytest
from support.dashboards import SAME, Page, browser, is_seen_elsewhere
from support.draining import drain
from support.polls import fill
from support.registering import register
from support.sql import execute, one, rows

from fbtasks import ConfigurationError, chain
from fbtasks.features.limits.gates import lane_of
from fbtasks.features.progress.store import Progress
from fbtasks.features.progress.store import put as put_progress
from fbtasks.features.web.showing import REDACTED, Arguments, links_of
from fbtasks.tasks.serialize import JSON_TYPE, Payload

NAME, TOKEN = "Kessler", "hushhush"


@pytest.fixture
def ward(app, session, claim):
    """An app of which all that features keep has the name of a patient, and a secret of his."""

    def raises(patient, card_token):
        logging.getLogger("ward").warning("%s has card_token=%s", patient, card_token)
        raise ValueError(f"no bed for {patient}: card_token={card_token}")

    options = {"retry_backoff": False, "default_retry_delay": 0, "autoretry_for": (ValueError,), "keep_logs": True}
    admit = app.task(name="admit", max_retries=1, **options)(raises)
    greet = app.task(name="greet")(lambda patient: f"hello {patient}")
    app.limit("bed", at_once=1)
    move = app.task(name="move", limits={"bed": "patient"})(lambda patient: None)
    app.on_event("left", name="left", order="key", stop_on_failure=True)(lambda event: 1 / 0)
    execute(app, "CREATE TABLE ROOM (KESSLER_ID INTEGER NOT NULL PRIMARY KEY, S VARCHAR(10))")
    status = {"status": "S", "ready": "R", "taken": "T", "done": "D", "failed": "E"}
    app.poll_table("ROOM", **status, name="polled", max_retries=0)(lambda row: 1 / 0)
    for name in ("daily", "broken"):
        app.add_periodic(admit, every=86_400, name=name, args=[NAME], kwargs={"card_token": TOKEN})
    app.migrate()
    greet.delay(NAME)
    chain(admit.si(NAME, TOKEN), greet.si(NAME)).delay()
    app.raise_event("left", {"patient": NAME, "bed": {"card-token": TOKEN}}, order_key=NAME)
    fill(app, "INSERT INTO ROOM VALUES (1, 'R')")
    drain(app)
    client = browser(app)
    (failed,) = rows(app, "SELECT ID FROM QUEUE_HISTORY WHERE NAME = 'admit'")[0]
    for path, values in {
        "/schedules/daily/run": {},
        "/schedules/daily/set-call": {"args": json.dumps([NAME, TOKEN]), "kwargs": "{}"},
        f"/bulk/retry?q={NAME}": {},
    }.items():
        answer = client.post(path, data=values, headers=SAME)
        assert answer.status_code == 303
        assert NAME not in answer.headers["Location"].partition("said=")[2]
    drain(app)
    said = f"{NAME} is busy, card_token: {TOKEN}"
    execute(app, "UPDATE QUEUE_SCHEDULE SET ERROR_MSG = ? WHERE NAME = 'broken'", said)
    execute(
        app,
        "INSERT INTO QUEUE_POLL_FAILURE (SUBSCRIPTION_ID, SINCE_TIME, LAST_TIME, ERROR_MSG) "
        "SELECT ID, QUEUE_NOW(), QUEUE_NOW(), CAST(? AS VARCHAR(100)) FROM QUEUE_SUBSCRIPTION WHERE KIND = 'poll'",
        said,
    )
    register(app, name="w", queues=["default"], pool="solo")  # which is asked for no stack
    move.delay(NAME)
    move.delay(NAME)
    for each in claim():
        details = json.dumps({"patient": NAME, "card_token": TOKEN}).encode()
        session.run(lambda t: put_progress(t, [Progress(each.id, each.claim_id, f"{NAME}...", details)]))  # noqa: B023
    app.failed = failed
    return app


def crawled(app, **options):
    """The texts of all pages, also as JSON, by their paths."""
    client, left, found = browser(app, **options), ["/"], {}
    while left:
        path = left.pop()
        if path in found or is_seen_elsewhere(path):
            continue
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.text)
        found[path] = answer.text
        shown = Page(answer)
        left += [link.partition("#")[0] for link in shown.links]
        left += [action for action in shown.buttons if re.search("/[0-9]+/run|/set-call", action)]
    return found


def kinds(pages, text=""):
    """The kinds of pages that have *text*: their paths without numbers."""
    return {re.sub(r"[0-9a-f]{12}|\d+", "N", path.partition("?")[0]) for path, found in pages.items() if text in found}


def test_what_is_not_shown_is_on_no_page(ward):
    shown, secret, hidden = (crawled(ward, **options) for options in ({"redact": []}, {}, {"arguments": "hidden"}))
    assert kinds(shown) == kinds(secret) == kinds(hidden)
    assert kinds(shown, NAME) >= {
        "/", "/overview.json", "/tasks", "/tasks.json", "/tasks/N", "/tasks/N.json", "/tasks/N/run", "/failures",
        "/failures.json", "/failures/N", "/failures/N.json", "/logs/N", "/logs/N.json", "/workflows/N",
        "/workflows/N.json", "/schedules", "/schedules.json", "/schedules/daily", "/schedules/daily.json",
        "/schedules/daily/set-call", "/schedules/broken", "/sources", "/sources.json", "/sources/N", "/sources/N.json",
        "/audit", "/audit.json",
    }  # fmt: skip
    lane = f"{lane_of('bed', NAME):016x}"
    assert kinds(shown, lane) == {"/limits/bed", "/limits/bed.json"}
    assert kinds(shown, f"{NAME}...") == {"/tasks/N", "/tasks/N.json"}
    assert [kinds(hidden, text) for text in (NAME, TOKEN, lane)] == [set()] * 3
    for path, text in {
        "/": "polling ROOM for polled fails: (not shown)",
        "/failures": "<b>ValueError</b></a> (not shown)",
        "/schedules": "it stands still: (not shown)",
        "/schedules/daily": "admit(...)",
    }.items():
        assert text in hidden[path], path
    assert kinds(shown, TOKEN) >= {"/", "/tasks/N/run", "/failures", "/logs/N", "/workflows/N", "/schedules/daily"}
    assert kinds(secret, TOKEN) == set()
    assert "admit(&#39;Kessler&#39;, (not shown))" in secret["/schedules"]
    assert "has card_token=(not shown)" in secret[f"/logs/{ward.failed}"]


def test_what_is_not_shown_is_not_found(ward):
    client = browser(ward, arguments="hidden")
    for query in (NAME, f"error:{NAME}", f"arg.0:{NAME}"):
        for path in ("/tasks", "/bulk/retry"):
            answer = client.get(f"{path}?q={query}")
            assert (answer.status_code, "leave it out" in answer.text) == (400, True), query
    assert client.get("/tasks?q=state:failed name:ad* queue:default").status_code == 200
    offered = ['value="error:"' in found.get("/tasks").text for found in (client, browser(ward))]
    assert offered == [False, True]
    queries = [TOKEN, f"error:{TOKEN}", f"arg.1:{TOKEN}", f"error:{NAME}", f"arg.0:{NAME}"]
    found = {
        redacts: [len(client.get(f"/tasks.json?q=state:failed {query}").json["page"]["rows"]) for query in queries]
        for redacts, client in {True: browser(ward), False: browser(ward, redact=[])}.items()
    }
    assert found == {True: [0, 0, 0, 2, 2], False: [2, 2, 1, 2, 2]}


def test_a_form_of_arguments_is_filled_in_where_all_are_shown_and_keeps_what_is_not(ward):
    path = "/schedules/daily/set-call"
    fields = {
        name: re.findall(r'<textarea name="(\w+)".*?>\n(.*?)</textarea>', browser(ward, **options).get(path).text, re.S)
        for name, options in {"shown": {"redact": []}, "redacted": {}, "hidden": {"arguments": "hidden"}}.items()
    }
    assert fields == {
        "shown": [("args", "[&#34;Kessler&#34;, &#34;hushhush&#34;]"), ("kwargs", "{}")],
        "redacted": [("args", ""), ("kwargs", "")],
        "hidden": [("args", ""), ("kwargs", "")],
    }
    assert browser(ward).post(path, data={"kwargs": '{"note": 1}'}, headers=SAME).status_code == 303
    assert json.loads(bytes(one(ward, "SELECT SET_PAYLOAD FROM QUEUE_SCHEDULE WHERE NAME = 'daily'"))) == [
        [NAME, TOKEN], {"note": 1},
    ]  # fmt: skip
    assert one(ward, "SELECT FIRST 1 SAID FROM QUEUE_AUDIT ORDER BY ID DESC") == "kwargs"


@pytest.mark.no_database
@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("login password=x failed", "login password=(not shown)"),
        ('{"auth_token": "a b\\" c", "n": 1}', '{"auth_token": (not shown), "n": 1}'),
        ('{\\"token\\": \\"a b\\", \\"n\\": 1}', '{\\"token\\": (not shown), \\"n\\": 1}'),
        (r"{\\\"token\\\": \\\"a \\\\\\\"b\\\", \\\"n\\\": 1}", r"{\\\"token\\\": (not shown), \\\"n\\\": 1}"),
        ("Authorization: Token a.b.c next\nend", "Authorization: (not shown)\nend"),
        ("{'X-Api-Key': 'x', 'Accept': '*'}", "{'X-Api-Key': (not shown), 'Accept': '*'}"),
        ("password=ab;rest", "password=(not shown)"),
        ("Password for user bob: x", "Password(not shown)"),
        ("password='ab' 'cd'", "password=(not shown)"),
        ('password="""a\nb""", n=1', "password=(not shown), n=1"),
        ("f(API_KEY=['a', ['b'], 'c'])\nnext", "f(API_KEY=(not shown)\nnext"),
        ("pass={'a': 1}, secret={'a': 1,\n 'b': 2}\nnext", "pass={'a': 1}, secret=(not shown)\nnext"),
        ("secret = b'ab cd'\nnext", "secret = (not shown)\nnext"),
        ("pwd:\n  x\nnext", "pwd:\n  (not shown)\nnext"),
        ('card_token: "unclosed abc\ndef', "card_token: (not shown)"),
        ("passwordHash=x", "password(not shown)"),
        ("no host postgres://ann:x@y:z@db/x", "no host postgres://ann:(not shown)@db/x"),
        ("jwt.InvalidTokenError: it has expired", "jwt.InvalidToken(not shown)"),
        ("KeyError: 'password'", "KeyError: 'password'"),
        ("3 to Kenya, 1 past Oken", "3 to Kenya, 1 past Oken"),
    ],
)
def test_values_behind_names_in_texts(app, text, seen):
    assert Arguments(app, REDACTED, hidden=False).told(text) == seen
    assert Arguments(app, REDACTED, hidden=True).told(text) == "(not shown)"
    assert Arguments(app, (), hidden=False).told(text) == text


@pytest.mark.no_database
def test_secrets_in_json_in_a_text(app):
    shown = Arguments(app, ["geheim-wort"], hidden=False)
    given = {"d": json.dumps({"n": 1, "Geheimwört": 2, "a": json.dumps({"GEHEIM_WORT": "x", "n": [2]})}), "e": "[3]"}
    payload = Payload(JSON_TYPE, json.dumps([[given], {}]).encode())
    told = {"n": 1, "Geheimwört": 2, "a": '{"GEHEIM_WORT": "(not shown)", "n": [2]}'}
    seen = {"d": json.dumps(told, ensure_ascii=False)}
    assert json.loads(shown.of_call(payload, None)[0].text) == seen | {"e": "[3]"}
    assert shown.values(payload, "t")["0"] == seen | {"e": "[3]"}
    assert [shown.hides("x", each) for each in (given["d"], given["e"])] == [True, False]


@pytest.mark.no_database
def test_a_word_without_letters_is_refused(app):
    with pytest.raises(ConfigurationError, match="redact holds '-_', which has no letter"):
        browser(app, redact=["pin", "-_"])


@pytest.mark.no_database
def test_secrets_are_not_in_links(app):
    assert links_of({"*": "/o/{order}?{token}", "t": "/o/{order}"}, "t", {"order": 1, "token": "(not shown)"}) == [
        "/o/1"
    ]
