"""A dashboard whose database user has the role of a viewer: the database itself keeps it from changing anything."""

from contextlib import closing
from urllib.parse import urlencode

from support.dashboards import SAME, browser, is_seen_elsewhere, page
from support.draining import drain
from support.registering import register
from support.sql import rows
from support.users import viewer

from fbtasks import FBTasks

TABLES = ("QUEUE_TASK", "QUEUE_HISTORY", "QUEUE_POLICY", "QUEUE_LIMIT", "QUEUE_SCHEDULE", "QUEUE_CANCEL", "QUEUE_AUDIT")


def test_a_viewer_sees_every_page_and_changes_nothing(app):
    app.limit("one", at_once=1)
    app.add_periodic(app.task(name="t", limits="one")(lambda: None), every=3600)
    fails = app.task(name="fails", max_retries=0)(lambda: 1 / 0)
    app.migrate()
    fails.delay()
    drain(app)
    app.tasks["t"].apply_async(queue="mail")
    app.tasks["t"].apply_async(countdown=1000)
    register(app, name="w", queues=["default"])
    before = [rows(app, f"SELECT * FROM {table}") for table in TABLES]
    with viewer(app) as theirs, closing(FBTasks("shop", theirs)) as shop:
        client = browser(shop)
        left, seen, deeds = ["/"], set(), {}
        while left:
            path = left.pop()
            if path in seen or is_seen_elsewhere(path):
                continue
            seen.add(path)
            found = page(client, path)
            assert found.status == 200, (path, found.text)
            left += [each.partition("#")[0] for each in found.links]
            asks = [form for form in found.forms if form.get("method") != "post" and form.get("action")]
            left += [
                f"{form['action']}?{urlencode(form['fields'])}" for form in asks if "search" not in form.get("role", "")
            ]
            deeds |= {
                form.get("action") or path: form["fields"] for form in found.forms if form.get("method") == "post"
            }
        assert {"/tasks", "/failures", "/limits/one", "/schedules", "/workers", "/system", "/audit"} < seen
        assert {path.partition("?")[0].rpartition("/")[2] for path in deeds} > {
            "pause",
            "run",
            "retry",
            "discard",
            "cancel",
            "purge",
        }
        for path, fields in deeds.items():
            client.post(path, data=fields, headers=SAME)
    assert [rows(app, f"SELECT * FROM {table}") for table in TABLES] == before
