"""The pages of the dashboard: each answers, whatever the database holds, and what comes from tasks is text in them."""

import hashlib
import json
import re
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.dashboards import SAME, browser, page
from support.draining import drain
from support.registering import register
from support.sql import execute, one, rows
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from fbtasks import FEATURES, FBTasks
from fbtasks import timing as clock
from fbtasks.feature import Feature
from fbtasks.features.web import charts, dashboard, store
from fbtasks.features.web.pages import overview, queues
from fbtasks.queue.register import processes
from fbtasks.sheet import Detail, Graph, Line, Node, Ref, Sheet, TaskRef
from fbtasks.states import State

pytestmark = pytest.mark.emptied
PAGES = ("/", "/queues", "/tasks", "/workers", "/failures", "/audit", "/system")
HOSTILE = "</title><script>alert(1)</script>%2e{{7*7}}'\"\x1b[31m\u202eabc\ud800"
NAME = "</title><script>alert(1)</script>%2f{{7*7}}"


@pytest.fixture
def shop(app):
    """An app with tasks in many states, of which some are hostile."""

    @app.task(name="shop.send", max_retries=0)
    def send(order, password="", note=None):
        if note:
            raise ValueError(note)
        return {"order": order, "secret_key": "hush"}

    app.send = send
    app.failed = send.delay(1, password="pa55", note=HOSTILE[:-1]).id
    app.returned = send.delay(2**60 + 1, "pa55").id
    drain(app)
    app.send_task(NAME, (HOSTILE[:-1],), queue="mail")
    app.waiting = send.apply_async((3,), queue="mail").id
    send.apply_async((4,), countdown=1000)
    register(app, name=NAME, queues=["default", "mail"])
    return app


def paths(app):
    found = browser(app).get("/failures.json").json["groups"]
    return [
        *PAGES,
        "/?span=24h",
        "/queues/mail?span=3h",
        *(f"/tasks?q=state:{state}" for state in ("failed", "waiting", "running")),
        *(f"/tasks/{number}" for number in (app.failed, app.returned, app.waiting)),
        f"/tasks/{app.failed}/discard",
        f"/tasks/{app.failed}/run",
        "/bulk/retry?q=state:failed",
        f"/failures/{found[0]['key']}",
        f"/workers/{one(app, 'SELECT MAX(ID) FROM QUEUE_PROCESS')}",
    ]


@pytest.mark.parametrize("path", PAGES)
def test_pages_of_an_empty_database(app, path):
    client = browser(app)
    found = page(client, path)
    assert found.status == 200
    assert sum(facts.get("aria-current") == "page" for _, facts in found.tags) == 1
    assert "/progress" not in found.links  # its sheet has no list
    answer = client.get("/overview.json" if path == "/" else f"{path}.json")
    assert (answer.status_code, answer.content_type) == (200, "application/json")
    json.loads(answer.text)


def test_what_comes_from_tasks_is_text_on_every_page(shop):
    client = browser(shop)
    seen = ""
    for path in paths(shop):
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert not {"\x1b", "\u202e"}.intersection(answer.text), path
        found = page(client, path)
        scripts = [facts.get("src", "") for tag, facts in found.tags if tag == "script"]
        assert [src.partition("?")[0] for src in scripts] == ["/static/idiomorph.js", "/static/live.js"], path
        assert not any(name.startswith("on") or name == "style" for _, facts in found.tags for name in facts), path
        where, mark, query = path.partition("?")
        assert client.get(f"{where.replace('/', '/overview', where == '/')}.json{mark}{query}").status_code == 200, path
        seen += found.text
    assert "\\x1b[31m\\u202eabc" in seen
    assert NAME in seen
    assert "{{7*7}}" in seen


def test_a_task_with_all_that_is_known_of_it(shop):
    links = {"shop.*": "https://erp.example/orders/{order}?x={nothing}", "*.send": "/o/{order}", "*": "/{password}"}
    client = browser(shop, links=links)
    found = page(client, f"/tasks/{shop.failed}")
    assert "ValueError: </title>" in found.text
    assert "Traceback" in found.text.partition("Facts")[0]  # what one looks for first
    assert "password (not shown)" in found.text
    assert "/o/1" in found.links
    assert not any("erp.example" in link for link in found.links)  # it has no such argument
    result = client.get(f"/tasks/{shop.returned}.json").json
    assert json.loads(result["result"]) == {"order": 2**60 + 1, "secret_key": "(not shown)"}
    assert result["arguments"][0] == {"name": "order", "text": str(2**60 + 1)}
    assert [part[0] for part in result["timeline"]] == ["waited", "succeeded"]
    assert "pa55" not in client.get(f"/tasks/{shop.returned}").text + client.get(f"/tasks/{shop.returned}/run").text
    execute(shop, "DELETE FROM QUEUE_PROCESS")
    assert "no worker serves its queue mail" in page(client, f"/tasks/{shop.waiting}").text


def test_tries_are_on_the_timeline_of_their_task(app):
    tried = []

    def fails_first():
        tried.append(1)
        return 1 // (len(tried) - 1)

    task = app.task(name="again", max_retries=1, default_retry_delay=0, autoretry_for=(Exception,))(fails_first)
    number = task.delay().id
    drain(app)
    execute(app, "UPDATE QUEUE_TRY SET START_TIME = DATEADD(-2 SECOND TO END_TIME)")
    execute(app, "UPDATE QUEUE_HISTORY SET FINISH_TIME = CLAIM_TIME")  # it took less than the clock tells
    client = browser(app)
    kinds = [part[0] for part in client.get(f"/tasks/{number}.json").json["timeline"]]
    assert [each for each in kinds if each != "waited"] == ["retry", "succeeded"]
    shown = page(client, f"/tasks/{number}")
    assert "retry 2 s" in shown.text
    assert "retry" in [facts.get("class") for tag, facts in shown.tags if tag == "rect"]


def test_a_task_that_waited_in_its_worker_took_as_long_as_it_ran(app):
    number = app.task(name="t")(lambda: None).delay().id
    drain(app)
    execute(app, "UPDATE QUEUE_HISTORY SET CLAIM_TIME = DATEADD(-2 SECOND TO FINISH_TIME), ELAPSED_MS = 500")
    assert "succeeded 500 ms" in page(browser(app), f"/tasks/{number}").text


def test_what_no_worker_serves_is_told_beside_one_worker(app):
    app.send_task("t", queue="mail")
    register(app, queues=["default"])
    client = browser(app)
    shown = page(client, "/queues/mail").text
    assert "mail no worker" in shown
    assert "No worker serves this queue. Start one: fbtasks worker -A MODULE -Q mail" in shown
    assert "1 worker 0 of 8 busy" in page(client, "/").text


def test_a_try_whose_worker_died_is_on_the_page_of_its_task(app, session, claim):
    number = app.task(name="t")(print).delay().id
    worker = register(app, name="web1")
    claim(worker=worker)
    assert session.run(lambda t: processes.rescue(t, worker, gone=True, awake=1e6, crash_limit=3)) == (
        1, "its process is gone",
    )  # fmt: skip
    client = browser(app)
    assert re.search(r"1 lost .* web1 its worker died \(its process is gone\)", page(client, f"/tasks/{number}").text)
    assert "lost" in [part[0] for part in client.get(f"/tasks/{number}.json").json["timeline"]]


def test_how_long_ago_something_was_is_told_by_the_clock_of_the_database(app, claim, monkeypatch):
    task = app.task(name="t")(print)
    number = task.delay().id
    claim()
    task.delay()
    monkeypatch.setattr(clock, "utcnow", lambda now=clock.utcnow: now() - timedelta(hours=3))
    client = browser(app)
    assert "in 3 h" not in page(client, "/queues").text
    _, (state, begin, end) = client.get(f"/tasks/{number}.json").json["timeline"]
    assert (state, begin <= end) == ("running", True)


def test_a_worker_and_what_it_runs(app, claim):
    app.task(name="shop.send")(print).delay()
    number = register(app, name="w")
    claim(worker=number)
    text = page(browser(app), f"/workers/{number}").text
    assert "Runs now ID Name Queue When Took Tries Error" in text
    assert "shop.send" in text


def test_a_pickle_is_shown_by_its_size(app):
    class Bomb:
        def __reduce__(self):
            return print, ("it was unpickled",)

    import cloudpickle

    app.task(name="t")(lambda: None).delay()
    data = cloudpickle.dumps([[Bomb()], {}])
    execute(app, "UPDATE QUEUE_TASK SET CONTENT_TYPE = 'application/x-fbtasks-cloudpickle', PAYLOAD = ?", data)
    number = one(app, "SELECT ID FROM QUEUE_TASK")
    found = page(browser(app), f"/tasks/{number}")
    assert f"({len(data)} bytes of application/x-fbtasks-cloudpickle)" in found.text
    assert not any("/run" in action for action in found.buttons)


def test_headers_of_a_call(app):
    number = app.task(name="t")(len).apply_async(("a",), headers={"tenant": "north", "auth_token": "t0k"}).id
    found = browser(app).get(f"/tasks/{number}.json").json["arguments"]
    assert [each["name"] for each in found] == ["obj", "headers"]
    assert json.loads(found[1]["text"]) == {"tenant": "north", "auth_token": "(not shown)"}


def test_long_arguments_are_cut(app):
    number = app.task(name="t")(len).delay("x" * 200_000).id
    assert len(browser(app).get(f"/tasks/{number}").data) < 100_000


def test_an_argument_that_is_too_long_for_a_form_is_kept(app):
    number = app.task(name="t")(len).delay("x" * 200_000).id
    client = browser(app)
    assert len(client.get(f"/tasks/{number}/run").data) < 10_000
    assert client.post(f"/tasks/{number}/run", data={"arg0": ""}, headers=SAME).status_code == 303
    assert len(set(rows(app, "SELECT PAYLOAD FROM QUEUE_TASK"))) == 1


def test_what_is_nested_deeper_than_python_goes(app):
    number = app.task(name="t")(len).delay("x").id
    execute(app, "UPDATE QUEUE_TASK SET PAYLOAD = ?", b"[[" + b"[" * 800 + b"]" * 800 + b"],{}]")
    client = browser(app)
    assert client.get(f"/tasks/{number}").status_code == client.get(f"/tasks/{number}/run").status_code == 200


def test_pages_of_a_list_have_each_task_once(app):
    app.task(name="t")(lambda: None).delay_many([()] * 120)
    client, path, seen = browser(app), "/tasks?q=state:ready", []
    while path:
        found = page(client, path)
        seen += [int(link.rpartition("/")[2]) for link in found.links if link.startswith("/tasks/")][::2]
        path = next((link for link in found.links if "after=" in link), None)
    assert sorted(seen) == list(range(1, 121))


def test_a_search_is_narrowed_by_links(shop):
    client = browser(shop)
    assert "/tasks?q=state:ready" in page(client, "/tasks?q=id:1").links
    found = client.get("/tasks?q=state:ready+queue:mail")
    assert "ready <small>2</small>" in found.text
    shown = page(client, "/tasks?q=state:ready+queue:mail")
    for query in (
        "state:running+queue:mail",
        "state:ready+queue:default",
        "state:ready",  # takes the queue away
        "state:ready+queue:mail+name:shop.send",
        "queue:mail+why:limit",
        "state:ready+queue:mail+since:24h",
    ):
        assert f"/tasks?q={query}" in shown.links
        assert client.get(f"/tasks?q={query}").status_code == 200, query
    assert "<small>" not in client.get("/tasks?q=state:ready+name:shop.*").text  # counts would be those of all names
    offered = [facts["value"] for tag, facts in shown.tags if tag == "option" and ":" in facts["value"]]
    assert {"state:held", "queue:mail", "name:shop.send", "why:paused", "error:"} <= {*offered}
    assert f'name:"{NAME}"' in offered or f"name:{NAME}" in offered
    assert '<option value="name:&lt;/title&gt;' in found.text
    parts = [page(client, path) for path in ("/audit", "/nix")]
    assert all("state:held" in [facts.get("value") for tag, facts in each.tags if tag == "option"] for each in parts)


def test_what_was_searched_for_wrongly(app):
    answer = browser(app).get("/tasks?q=stat:failed")
    assert answer.status_code == 400
    assert "Did you mean &#39;state&#39;?" in answer.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *((path, 404) for path in ("/nix", "/tasks/17", "/boxes/~FF", "/workflows/~ED~A0~80")),
        *((path, 400) for path in ("/queues/nix", f"/audit?before={2**63}", f"/audit?before={'9' * 5000}")),
        ("/tasks", 405),
    ],
)
def test_what_is_not_there(app, path, status):
    client = browser(app)
    answer = client.post(path) if status == 405 else client.get(path)
    assert answer.status_code == status
    assert answer.headers["Content-Security-Policy"]
    if status == 404:
        assert client.get(f"{path}.json").json["problem"]


def test_counters_become_charts(app):
    app.task(name="shop.send", queue="mail")(lambda: 1).delay_many([()] * 40)
    app.task(name="shop.fail", queue="mail", max_retries=0)(lambda: 1 / 0).delay()
    drain(app)
    execute(app, "DELETE FROM QUEUE_VERSION")  # its worker may have noted its own
    with app.database.session() as session:
        for version in ("2.0", "2.1"):
            depths = 7, 0, 3, 1, 1, 8, version
            session.run(lambda t, d=depths: store.put_depths(t, {"": d, "mail": d}))
    found = browser(app).get("/overview.json").json
    assert sum(point["succeeded"] for point in found["points"]) == 40
    assert [row["name"] for row in found["names"]] == ["shop.fail", "shop.send"]
    assert (found["backlog"][-1]["held"], found["backlog"][-1]["slots"]) == (3, 8)
    assert [each["versions"] for each in found["versions"]] == ["2.1"]
    shown = page(browser(app), "/queues/mail")
    assert "version 2.1" in shown.text
    assert "2.0" not in shown.text
    assert len([facts for _, facts in shown.tags if facts.get("class") == "mark"]) == 5
    bars = [facts["class"] for tag, facts in shown.tags if tag == "rect" and facts["class"] != "hover"]
    assert set(bars) == {"succeeded", "failed"}
    assert {"line p50", "line p95", "line ready"} <= {facts.get("class") for tag, facts in shown.tags if tag == "path"}
    assert "/tasks?q=queue:mail+name:shop.send" in shown.links
    assert "1 100.0 %" in shown.text
    tips = re.findall(r'<title data-at="(\d+)">([^<]*)</title>', browser(app).get("/queues/mail").text)
    assert len(tips) == 5 * (60 + 1)
    for at, tip in tips:
        assert tip.startswith(f"{datetime.fromtimestamp(int(at), UTC):%H:%M} UTC\n")
    assert [tip.partition("\n")[2] for _, tip in tips if "\nsucceeded 40\n" in tip] == [
        "succeeded 40\nfailed 1\ncancelled 0\nretried 0"
    ]


def test_lists_of_queues_have_the_last_hour_of_each(app):
    app.task(name="shop.send", queue="mail")(lambda: 1).delay_many([()] * 4)
    app.task(name="shop.fail", queue="mail", max_retries=0)(lambda: 1 / 0).delay()
    app.send_task("none", queue="idle")
    drain(app, queues=["mail"])
    execute(app, "UPDATE QUEUE_MINUTE SET AT_TIME = DATEADD(-30 MINUTE TO AT_TIME)")
    app.task(name="shop.again", queue="mail")(lambda: 1).delay()
    drain(app, queues=["mail"])
    app.send_task("none", queue="mail")
    client = browser(app)
    spark = client.get("/queues.json").json["sparks"]
    assert [*spark] == ["mail"]
    values = spark["mail"]["values"]
    assert {name: [each for each in parts if each] for name, parts in values.items()} == {
        "succeeded": [4, 1],
        "failed": [1],
    }
    assert values["succeeded"].index(4) == values["failed"].index(1) == pytest.approx(9, abs=1)
    for path in ("/", "/queues"):
        shown = page(client, path)
        assert [facts.get("role") for tag, facts in shown.tags if facts.get("class") == "spark"] == ["img"]
        assert re.search(r"by three minutes succeeded: [0 ]+ 4 [0 ]+ 1 (0 )*failed: [0 ]+ 1 ", shown.text)
        assert "1 16.7 %" in shown.text


def test_many_queues_are_listed_by_pages_and_the_overview_has_those_with_most(app, monkeypatch):
    monkeypatch.setattr(overview, "MOST", 2)
    monkeypatch.setattr(queues, "PAGE", 2)
    for name, number in {"a": 2, "b": 1, "c": 3}.items():
        app.task(name=f"shop.{name}", queue=name)(lambda: 1).delay_many([()] * number)
    drain(app)
    for name, number in {"a": 2, "b": 1, "c": 3}.items():
        app.tasks[f"shop.{name}"].delay_many([()] * number)
    client = browser(app)
    for _ in range(2):  # what is kept of the first look serves the second
        found = client.get("/overview.json").json
        assert [row["queue"] for row in found["queues"]] == [row["queue"] for row in found["counters"]] == ["a", "c"]
        assert [row["name"] for row in found["names"]] == ["shop.a", "shop.c"]
        assert found["sparks"].keys() == {"a", "c"}
        assert (found["totals"]["ready"], found["totals"]["succeeded"]) == (6, 6)
        assert (len(found["findings"]), found["left"]) == (2, {"queues": 1, "names": 1, "findings": 2})
    shown = page(client, "/").text
    assert "The 2 with the most tasks, of 3." in shown
    assert "and 2 more, which fbtasks health tells" in shown
    assert [row["queue"] for row in client.get("/queues.json").json["queues"]] == ["a", "b"]
    (rest,) = [link for link in page(client, "/queues").links if "after=" in link]
    assert {link for link in page(client, rest).links if link.startswith("/queues/")} == {"/queues/c"}
    assert client.get(rest.replace("/queues", "/queues.json")).json["next"] is None


def test_lines_end_where_there_is_no_value():
    start = datetime(2026, 1, 1, tzinfo=UTC)
    moments = [start + timedelta(minutes=n) for n in range(4)]
    found = charts.draw("t", moments, [charts.Series("p50", [1.0, None, 2.0, 4.0], "line")], str)
    assert found.paths[0][2].count("M") == 2
    assert (found.top, found.last) == ("4.0", [("p50", "4.0")])


def test_the_same_page_again_is_not_sent_again(app):
    client = browser(app)
    first = client.get("/audit")
    assert client.get("/audit", headers={"If-None-Match": first.headers["ETag"]}).status_code == 304
    static = next(facts["href"] for tag, facts in page(client, "/").tags if facts.get("rel") == "stylesheet")
    assert "immutable" in client.get(static).headers["Cache-Control"]


def test_below_a_prefix(shop):
    inside = dashboard(shop, authorize=lambda *_: True)
    client = Client(DispatcherMiddleware(lambda environ, start: [], {"/admin/tasks": inside}))
    found = page(client, "/admin/tasks/queues/mail")
    own = [link for link in found.links if not link.startswith("#")]
    assert own
    assert all(link.startswith("/admin/tasks/") for link in own)
    assert all(form["action"].startswith("/admin/tasks/") for form in found.forms if "action" in form)
    answer = client.post("/admin/tasks/queues/mail/pause", headers={"Sec-Fetch-Site": "same-origin"})
    assert answer.headers["Location"].startswith("/admin/tasks/queues/mail?")


def test_files_of_others_are_those_of_the_registry():
    folder = Path(store.__file__).with_name("static")
    listed = json.loads((folder / "VENDORED.json").read_text())
    assert listed
    for name, facts in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == facts["sha256"]


# Pages of features.

KEYS = ["a/b", "..", ".", "list.json", "ünï ~%2F?#&", "<b>", "x" * 300, "\u202e"]


class Boxes(Sheet):
    name, title, empty = "boxes", "Boxes", "No box."

    def lines(self, session, after, most):
        keys = sorted(KEYS)
        if after is not None:
            keys = keys[keys.index(after) + 1 :]
        cells = {"Box": None, "Task": TaskRef(7), "Other": Ref("boxes", "a/b", "there"), "Since": timedelta(seconds=90)}
        first = {"a/b": Ref("boxes", "a/b", "a box"), "..": "<b>failed"}
        return [Line(key=key, cells={**cells, "Box": first.get(key, key)}, wrong="it is empty") for key in keys[:most]]

    def detail(self, session, key):
        nodes = [
            Node(id=n, label=f"{HOSTILE} {n}", state=State.FAILED if n else None, task=n or None) for n in range(4)
        ]
        graph = Graph(nodes=nodes, arrows=[(0, 1), (0, 2), (1, 3), (2, 3), (3, 0)], left_out=2)
        line = next((each for each in self.lines(session, None, 100) if each.key == key), None)
        return line and Detail(line=line, facts={"Big": 2**60}, tables={"Parts": [{"n": 1, "when": None}]}, graph=graph)

    def of_task(self, session, task):
        return {"Box": Ref("boxes", "a/b", "the box")}


class Boxing(Feature):
    name = "boxing"

    def sheets(self):
        return [Boxes()]


@pytest.fixture
def boxing(url):
    with closing(FBTasks("test", url, features=[*FEATURES, Boxing()])) as app:
        yield app


def test_names_of_all_kinds_are_in_addresses(boxing, monkeypatch):
    monkeypatch.setattr("fbtasks.features.web.pages.sheets.PAGE", 3)
    client, path, seen = browser(boxing), "/boxes", []
    while path:
        found = page(client, path)
        seen += [link for link in found.links if link.startswith("/boxes/") and link != "/boxes/a~2Fb"][:3]
        assert not found.nested
        path = next((link for link in found.links if "after=" in link), None)
    assert all("/" not in link.removeprefix("/boxes/") for link in seen)
    assert not {"/boxes/.", "/boxes/.."}.intersection(seen)  # which a browser takes for folders
    assert all(client.get(link).content_type.startswith("text/html") for link in seen)
    keys = [client.get(f"{link}.json").json["line"]["key"] for link in ["/boxes/a~2Fb", *seen]]
    assert sorted(set(keys)) == sorted(KEYS)


def test_a_line_is_drawn_with_its_graph(boxing):
    client = browser(boxing)
    found = page(client, "/boxes/a~2Fb")
    assert (found.status, found.text.count("it is empty")) == (200, 1)
    assert sum(tag == "g" for tag, _ in found.tags) == 4
    assert sum(facts.get("class") == "arrow" for _, facts in found.tags) == 5
    assert "2 more are not drawn" in found.text
    assert f"{2**60:,}" in found.text
    number = boxing.task(name="t")(lambda: None).delay().id
    assert "/boxes/a~2Fb" in page(client, f"/tasks/{number}").links
    assert client.get("/boxes/none").status_code == 404
