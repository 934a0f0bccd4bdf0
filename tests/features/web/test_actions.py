"""What operators do with the dashboard: it is done, and in the audit, in one transaction."""

import json
import time
from contextlib import closing
from itertools import pairwise

import pytest
from support.dashboards import SAME, browser, page, said
from support.draining import drain
from support.registering import register
from support.sql import execute, one, rows

from fbtasks import FEATURES, ConfigurationError, FBTasks, FBTasksError
from fbtasks.feature import Feature
from fbtasks.features.web import search
from fbtasks.features.web.actions import many
from fbtasks.queue.operations import tasks
from fbtasks.sheet import Act, Field, Line, Sheet
from fbtasks.states import State

pytestmark = pytest.mark.emptied
AUDIT = "SELECT WHO, ACTION, WHAT, CAST(SAID AS VARCHAR(1000)) FROM QUEUE_AUDIT ORDER BY ID"


@pytest.fixture
def client(app):
    return browser(app)


@pytest.fixture
def fail(app):
    """Enqueues tasks that fail, and has them do so. Returns their ids."""

    @app.task(name="shop.fail", max_retries=0)
    def fail(order, card_token=""):
        raise ValueError(f"order {order}")

    def run(*orders, **how):
        ids = [int(fail.apply_async((order, "tok"), **how).id) for order in orders]
        drain(app)
        return ids

    return run


def post(client, path, **data):
    return client.post(path, data=data, headers=SAME)


def test_a_task_is_put_back_cancelled_and_deleted(app, client, fail):
    (number,) = fail(1)
    assert page(client, f"/tasks/{number}").buttons >= {
        f"/tasks/{number}/{each}" for each in ("retry", "discard", "run")
    }
    assert "The task is put back." in said(client, post(client, f"/tasks/{number}/retry")).text
    assert page(client, f"/tasks/{number}").buttons == {f"/tasks/{number}/cancel", f"/tasks/{number}/run", "/tasks"}
    asked = page(client, f"/tasks/{number}/cancel")
    assert f"Cancel task {number}, shop.fail?" in asked.text
    assert app.AsyncResult(number).state == "PENDING"  # asked is not done
    assert "The task is cancelled." in said(client, post(client, f"/tasks/{number}/cancel")).text
    assert "nothing was changed" in client.post(f"/tasks/{number}/cancel", headers=SAME).text
    assert "The task is deleted." in said(client, post(client, f"/tasks/{number}/discard")).text
    assert one(app, "SELECT COUNT(*) FROM QUEUE_HISTORY") == 0
    what = f"task {number} (shop.fail)"
    *lines, refused, last = rows(app, AUDIT)
    assert [*lines, last] == [("ann", each, what, "") for each in ("retry", "cancel", "discard")]
    assert refused[:3] == ("ann", "cancel", what)
    assert refused[3].startswith("refused: nothing was changed, for the task is cancelled: only tasks that have not")
    found = page(client, "/audit")
    assert found.text.count(what) == 4


def test_what_is_not_written_into_the_audit_is_not_done(app, client, fail, monkeypatch):
    (number,) = fail(1)

    def refuse(*_):
        raise ConfigurationError("no ink")

    monkeypatch.setattr("fbtasks.features.web.store.note", refuse)
    assert "no ink" in post(client, f"/tasks/{number}/retry").text
    assert app.AsyncResult(number).state == "FAILURE"


def test_a_running_task_is_stopped_by_its_worker(app, client, claim):
    number = app.task(name="t")(print).delay().id
    claim()
    assert f"/tasks/{number}/stop" in page(client, f"/tasks/{number}").buttons
    assert "Its worker was asked to stop it." in said(client, post(client, f"/tasks/{number}/stop")).text
    assert one(app, "SELECT TERMINATE FROM QUEUE_CANCEL") == 1


def test_a_task_that_is_claimed_while_it_is_cancelled_is_not_stopped(app, client, claim, monkeypatch):
    number = app.task(name="t")(print).delay().id
    look = tasks.get_task

    def look_and_claim(*given):
        found = look(*given)
        claim()
        return found

    monkeypatch.setattr(tasks, "get_task", look_and_claim)
    assert "A worker has begun it." in said(client, post(client, f"/tasks/{number}/cancel")).text
    assert one(app, "SELECT TERMINATE FROM QUEUE_CANCEL") == 0


def test_all_that_a_search_finds_as_the_reader_was_asked(app, client, fail, monkeypatch):
    monkeypatch.setattr(many, "BATCH", 2)
    ids = fail(*range(5))
    asked = page(client, "/bulk/retry?q=state:failed")
    assert "Put 5 tasks back into their queues?" in asked.text
    (form,) = [each for each in asked.forms if each.get("class") == "ask"]
    more = fail(9)
    done = said(client, post(client, "/bulk/retry?q=state:failed", **form["fields"]))
    assert "Retry: 5 tasks of 5." in done.text
    assert rows(app, "SELECT ID FROM QUEUE_HISTORY") == [(number,) for number in more]
    lines = rows(app, AUDIT)
    assert lines == [("ann", "retry", "tasks state:failed", f"5 tasks, {ids[0]} to {ids[4]}")]
    assert "Cancel: 5 tasks of 5." in said(client, post(client, "/bulk/cancel?q=state:waiting")).text
    assert "Discard: 6 tasks of 6." in said(client, post(client, "/bulk/discard?q=")).text
    assert (
        one(app, "SELECT (SELECT COUNT(*) FROM QUEUE_TASK) + (SELECT COUNT(*) FROM QUEUE_HISTORY) FROM RDB$DATABASE")
        == 0
    )


def test_a_task_that_moves_while_the_search_is_read_is_counted_once(app, client, monkeypatch):
    monkeypatch.setattr(many, "BATCH", 2)
    app.task(name="t")(print).delay_many([()] * 3)
    read = search.page

    def read_and_move(*given):
        found = read(*given)
        execute(app, "UPDATE QUEUE_TASK SET START_TIME = DATEADD(1 HOUR TO START_TIME) WHERE ID = 1")
        return found

    monkeypatch.setattr(search, "page", read_and_move)
    assert "Cancel 3 tasks?" in page(client, "/bulk/cancel?q=state:ready").text


def test_tasks_that_are_ticked(app, client, fail):
    ids = fail(*range(4))
    shown = page(client, "/tasks?q=state:failed")
    ticks = [facts for tag, facts in shown.tags if facts.get("name") == "id"]
    assert sorted(int(each["value"]) for each in ticks) == ids
    assert ticks[0]["aria-label"] == f"Task {ticks[0]['value']}"
    path = f"/bulk/retry?q=state:failed&after=9.9&id={ids[1]}&id={ids[3]}&id=99"
    asked = page(client, path)
    assert "Put 2 tasks back into their queues?" in asked.text
    (form,) = [each for each in asked.forms if each.get("class") == "ask"]
    assert form["fields"]["ids"] == f"{ids[1]},{ids[3]}"
    answer = post(client, path, ids=",".join(map(str, ids)))  # more than are ticked
    assert answer.headers["Location"].startswith("/tasks?q=state:failed&after=9.9&said=Retry")
    assert rows(app, "SELECT ID FROM QUEUE_HISTORY ORDER BY ID") == [(ids[0],), (ids[2],)]
    what = f"tasks {ids[1]}, {ids[3]}"
    assert rows(app, AUDIT) == [("ann", "retry", what, f"2 tasks: {ids[1]}, {ids[3]}")]
    for each in ("x", "", "-1", "9" * 19):
        assert f"id={each} must be the numbers of 500 tasks or fewer" in page(client, f"/bulk/discard?id={each}").text
    assert client.post(path + "".join(f"&id={n}" for n in range(500)), headers=SAME).status_code == 400
    assert one(app, "SELECT COUNT(*) FROM QUEUE_HISTORY") == 2


def test_the_numbers_of_all_that_are_ticked_are_in_the_audit(app, client):
    ids = [each.id for each in app.task(name="t")(print).delay_many([()] * 500)]
    answer = post(client, "/bulk/cancel?q=" + "".join(f"&id={number}" for number in ids))
    assert "Cancel: 500 tasks of 500." in said(client, answer).text
    ((_, _, what, told),) = rows(app, AUDIT.replace("VARCHAR(1000)", "VARCHAR(8000)"))
    assert told == f"500 tasks: {', '.join(map(str, ids))}"
    assert len(what) == 1000
    assert told in page(client, "/audit").text


def test_what_fails_half_way_is_told(app, client, fail, monkeypatch):
    monkeypatch.setattr(many, "BATCH", 2)
    first, _, third = fail(1, 2, 3)
    change, tries = many.ON_MANY["retry"].change, []

    def refuse_second(*given):
        tries.append(given)
        if len(tries) == 2:
            raise FBTasksError("that is enough")
        return change(*given)

    monkeypatch.setitem(many.ON_MANY, "retry", many.ON_MANY["retry"]._replace(change=refuse_second))
    assert post(client, "/bulk/retry?q=state:failed").status_code == 409
    done, refused = rows(app, AUDIT)
    assert done[3] == f"3 tasks, {first} to {third}"
    assert refused[3] == f"refused: 2 tasks of 3 were changed, and then: that is enough ({done[3]})"
    assert rows(app, "SELECT ID FROM QUEUE_HISTORY") == [(first,)]


def test_ticked_tasks_need_the_right_of_their_queue(app):
    ids = [app.task(name=queue, queue=queue)(print).delay().id for queue in ("mail", "sms")]
    client = browser(app, lambda request, action, queue: action == "look" or queue == "mail")
    assert client.get("/tasks?q=state:ready").text.count('name="id"') == 0
    assert client.get("/tasks?q=state:ready+queue:mail").text.count('name="id"') == 1
    for ticked in ([ids[1]], ids):
        path = "/bulk/cancel?q=state:ready+queue:mail" + "".join(f"&id={each}" for each in ticked)
        assert (client.get(path).status_code, post(client, path).status_code) == (403, 403)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 2
    assert post(client, f"/bulk/cancel?q=&id={ids[0]}").status_code == 303
    assert rows(app, "SELECT ID FROM QUEUE_TASK") == [(int(ids[1]),)]


def test_a_group_of_failures_is_put_back_at_a_pace(app, client, fail, monkeypatch):
    monkeypatch.setattr(many, "BATCH", 2)
    fail(*range(5))
    app.task(name="other", max_retries=0)(lambda: 1 / 0).delay()
    drain(app)
    group = next(each for each in client.get("/failures.json").json["groups"] if each["name"] == "shop.fail")
    path = f"/failures/{group['key']}/retry"
    assert path in page(client, f"/failures/{group['key']}").buttons
    assert "from 1 to 60000" in post(client, path, pace="0").text
    began = time.monotonic()
    assert "Retry: 5 tasks of 5." in said(client, post(client, path, pace="200")).text
    took = time.monotonic() - began  # in several transactions, each of which begins to count at its own time
    starts = [
        start for (start,) in rows(app, "SELECT START_TIME FROM QUEUE_TASK WHERE STATE = ? ORDER BY 1", State.SCHEDULED)
    ]
    steps = [(later - one).total_seconds() for one, later in pairwise(starts)]
    assert len(starts) == 4  # the first one may begin at once
    assert all(0.25 < step < 0.35 + took for step in steps), steps
    assert rows(app, AUDIT)[0][3].endswith(", one each 300 ms")
    assert one(app, "SELECT NAME FROM QUEUE_HISTORY") == "other"


def test_a_task_is_run_again_with_other_arguments(app, client):
    @app.task(name="shop.pay", queue="mail")
    def pay(order, card_token="", *, note=None, at=None):
        return [order, card_token, note]

    number = pay.apply_async((17, "tok_4711"), {"note": {"a": "ü"}}, priority=3).id
    asked = page(client, f"/tasks/{number}/run")
    (form,) = [each for each in asked.forms if each.get("class") == "ask"]
    assert list(form["fields"]) == ["token", "arg0", "arg1", "arg2", "newat"]
    assert "tok_4711" not in client.get(f"/tasks/{number}/run").text
    values = {"arg0": "18", "arg1": "", "arg2": '{"a": "ü"}', "newat": '"now"'}
    for wrong in ("x", '{"__type__": "decimal", "__value__": "x"}', '{"__type__": "bytes", "__value__": 1}'):
        assert "is not JSON" in post(client, f"/tasks/{number}/run", **values | {"arg0": wrong}).text
    answer = post(client, f"/tasks/{number}/run", **values)
    done = said(client, answer)
    new, name, queue, priority, payload = rows(
        app, "SELECT ID, NAME, QUEUE, PRIORITY, PAYLOAD FROM QUEUE_TASK ORDER BY ID DESC"
    )[0]
    assert answer.location.startswith(f"/tasks/{new}?")
    assert f"Enqueued as task {new}." in done.text
    assert (name, queue, priority) == ("shop.pay", "mail", 3)
    assert json.loads(bytes(payload)) == [[18, "tok_4711"], {"note": {"a": "ü"}, "at": "now"}]
    assert rows(app, AUDIT) == [("ann", "run", f"task {number} (shop.pay)", "order, at (not given)")]
    assert "cannot be called like that" in post(client, f"/tasks/{unknown_call(app)}/run", more='{"b": 1}').text


def test_a_task_is_run_again_with_its_headers_but_those_of_its_trace(app, client):
    told = {
        "traceparent": "00-1-2-01",
        "sentry-trace": "1-2",
        "fbtasks-sent": "1.5",
        "baggage": "a=b",
        "tracestate": "c",
    }
    pay = app.task(name="pay")(lambda order: order)
    number = pay.apply_async((17,), headers={"tenant": "north", **told}).id
    said(client, post(client, f"/tasks/{number}/run"))
    assert json.loads(bytes(one(app, "SELECT PAYLOAD FROM QUEUE_TASK ORDER BY ID DESC"))) == [
        [17],
        {},
        {"tenant": "north"},
    ]
    number = pay.apply_async((18,), headers=told).id
    said(client, post(client, f"/tasks/{number}/run"))
    assert json.loads(bytes(one(app, "SELECT PAYLOAD FROM QUEUE_TASK ORDER BY ID DESC"))) == [[18], {}]


def unknown_call(app):
    """A call that the function of its task does not take."""
    number = app.task(name="one")(lambda a: a).delay(1).id
    execute(app, "UPDATE QUEUE_TASK SET PAYLOAD = '[[1, 2, 3], {}]' WHERE ID = ?", number)
    return number


def test_a_call_of_a_task_that_only_others_know(app, client):
    number = app.send_task("far.away", (1,)).id
    done = said(client, post(client, f"/tasks/{number}/run", arg0="2", more='{"b": 1}'))
    assert "Enqueued" in done.text
    assert bytes(one(app, "SELECT PAYLOAD FROM QUEUE_TASK ORDER BY ID DESC")) == b'[[2],{"b":1}]'
    assert "must be a JSON object" in post(client, f"/tasks/{number}/run", more="[1]").text


def test_a_queue_is_paused_resumed_and_purged(app, client):
    app.task(name="t", queue="mail")(print).delay_many([()] * 3)
    assert "Nothing of mail begins now." in said(client, post(client, "/queues/mail/pause")).text
    assert page(client, "/queues/mail").buttons == {"/queues/mail/resume", "/queues/mail/purge", "/tasks"}
    assert "it was so already" in said(client, post(client, "/queues/mail/pause")).text
    assert "Tasks of mail begin again." in said(client, post(client, "/queues/mail/resume")).text
    assert "Delete all waiting tasks of the queue mail?" in page(client, "/queues/mail/purge").text
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 3
    assert "3 tasks deleted." in said(client, post(client, "/queues/mail/purge")).text
    assert [line[1:3] for line in rows(app, AUDIT)] == [
        (each, "queue mail") for each in ("pause", "pause", "resume", "purge")
    ]


def test_a_worker_is_stopped(app, client):
    number = register(app, name="w", queues=["default"])
    assert "ends when what it runs has ended" in page(client, f"/workers/{number}/stop").text
    assert "It ends when" in said(client, post(client, f"/workers/{number}/stop")).text
    assert one(app, "SELECT DRAINING FROM QUEUE_PROCESS WHERE ID = ?", number)
    assert f"/workers/{number}/stop" not in page(client, f"/workers/{number}").links
    assert "told already" in said(client, post(client, f"/workers/{number}/stop")).text
    assert [line[1:3] for line in rows(app, AUDIT)] == [("stop_worker", f"worker {number}")] * 2


@pytest.mark.parametrize(
    "path", ["/queues/mail/burn", "/tasks/{}/burn", "/bulk/burn?q=", "/failures/nix/retry", "/nix/a/b"]
)
def test_actions_that_there_are_not(app, client, path):
    number = app.task(name="t", queue="mail")(print).delay().id
    assert client.post(path.format(number), headers=SAME).status_code == 404


def test_to_stop_many_takes_another_right_than_to_cancel_them(app):
    waits, runs = (int(app.task(name=name)(print).delay().id) for name in ("waits", "runs"))
    worker = register(app)
    execute(app, "UPDATE QUEUE_TASK SET STATE = 2, WORKER_ID = ? WHERE ID = ?", worker, runs)
    client = browser(app, lambda request, action, queue: action in ("look", "cancel"))
    path = f"q=state:ready,running&id={waits}&id={runs}"
    assert "/bulk/stop" not in client.get(f"/tasks?{path}").text
    assert "Cancel 1 task?" in page(client, f"/bulk/cancel?{path}").text
    assert post(client, f"/bulk/stop?{path}").status_code == 403
    assert "Cancel: 1 task of 1." in said(client, post(client, f"/bulk/cancel?{path}")).text
    assert rows(app, "SELECT ID FROM QUEUE_TASK") == [(runs,)]
    assert not one(app, "SELECT COUNT(*) FROM QUEUE_CANCEL")
    client = browser(app)
    assert "/bulk/stop" in client.get(f"/tasks?{path}").text
    assert "Stop: 1 task of 1." in said(client, post(client, f"/bulk/stop?{path}")).text
    assert rows(app, "SELECT ID, TERMINATE FROM QUEUE_CANCEL") == [(runs, 1)]


@pytest.mark.parametrize("given", [{"ids": "9" * 5000}, {"pace": "9" * 5000}])
def test_numbers_that_are_too_long(client, fail, given):
    fail(1)
    assert "Traceback" not in post(client, "/bulk/retry?q=state:failed", **given).text
    assert post(client, "/bulk/retry?q=state:failed", **given).status_code in (303, 400)


class Lamps(Sheet):
    name, title = "lamps", "Lamps"

    def __init__(self):
        self.seen = []
        fields = [Field(name="to", label="to", kind="number"), Field(name="all", label="all", kind="flag")]
        self.actions = {
            "dim": Act(label="Dim", do=self.dim, fields=fields),
            "break": Act(label="Break", do=self.dim, ask="Break {key}?"),
            "light": Act(label="Light", do=self.dim),
        }

    def dim(self, app, key, values):
        if values.get("to") == "11":
            raise ConfigurationError("it goes to 10.")
        with app.database.session() as session:
            session.sql("UPDATE QUEUE_SCHEMA SET NAME = NAME WHERE VERSION = 0")
        self.seen.append((key, dict(values)))
        return f"{key} is dimmed"

    def lines(self, session, after, most):
        return [Line(key="a/b", cells={"Lamp": "a/b"}, values={"to": "7"}, actions=["dim", "break", "light"])]


class Lighting(Feature):
    name = "lighting"

    def __init__(self):
        self.lamps = Lamps()

    def sheets(self):
        return [self.lamps]


def test_actions_of_features(url):
    feature = Lighting()
    with closing(FBTasks("test", url, features=[*FEATURES, feature])) as app:
        client = browser(app)
        found = page(client, "/lamps/a~2Fb")
        assert found.buttons == {"/tasks", *(f"/lamps/a~2Fb/{each}" for each in ("dim", "break", "light"))}
        methods = {form.get("action", "").rpartition("/")[2]: form.get("method") for form in found.forms}
        assert [methods[each] for each in ("dim", "break", "light")] == ["get", "get", "post"]
        assert page(client, "/lamps/a~2Fb/dim").forms[1]["fields"]["to"] == "7"
        assert "Break a/b?" in page(client, "/lamps/a~2Fb/break").text
        assert "a/b is dimmed." in said(client, post(client, "/lamps/a~2Fb/dim", to="5", all="1", other="x")).text
        assert "it goes to 10." in post(client, "/lamps/a~2Fb/dim", to="11").text
        assert feature.lamps.seen == [("a/b", {"to": "5", "all": "1"})]
        assert rows(app, AUDIT) == [("ann", "lamps.dim", "lamps a/b", "to=5, all=1")]
        allowed = browser(app, lambda request, action, queue: action in ("look", "lamps.light"))
        assert page(allowed, "/lamps/a~2Fb").buttons == {"/tasks", "/lamps/a~2Fb/light"}


def test_what_an_action_of_a_feature_does_elsewhere_is_in_the_audit_too(url):
    feature = Lighting()
    with closing(FBTasks("test", url, features=[*FEATURES, feature])) as app:
        feature.lamps.actions["light"] = Act(label="Light", do=lambda app, key, values: "It is lit.")
        client = browser(app)
        assert "It is lit." in said(client, post(client, "/lamps/a~2Fb/light")).text
        assert rows(app, AUDIT) == [("ann", "lamps.light", "lamps a/b", "")]
