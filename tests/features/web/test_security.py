"""Who may use the dashboard, and that other sites cannot."""

import sys

import pytest
from support.dashboards import SAME, browser, page
from support.sql import one
from werkzeug.test import Client

from fbtasks import ConfigurationError, FBTasks
from fbtasks.features.web import dashboard
from fbtasks.features.web.security import PASSWORD, TOKEN, Login, hash_password

pytestmark = pytest.mark.emptied
HASH = hash_password("open sesame")
"""It takes a moment."""


def served(app, host="127.0.0.1", env=(), **options):
    """The dashboard as ``fbtasks web`` serves it."""
    login = Login(host, env=dict(env), **options)
    return Client(login.behind(dashboard(app, authorize=login)))


def status(client, path="/audit", remote="127.0.0.1", **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.get(path, headers=headers, environ_base={"REMOTE_ADDR": remote}).status_code


def test_without_a_login_this_machine_alone_is_answered(app):
    client = served(app)
    assert status(client) == 200
    assert status(client, Host="127.0.0.1:8555") == status(client, Host="[::1]:8555") == 200
    assert status(client, Host="evil.example") == status(client, Host="localhost.evil.example:8555") == 421
    assert status(client, X_Forwarded_For="1.2.3.4") == status(client, Forwarded="for=1.2.3.4") == 403
    assert status(client, Host="a..b") == status(client, Host=f"{'a' * 64}.x") == status(client, Host="[") == 421
    with pytest.raises(ConfigurationError, match=r"^--host 0\.0\.0\.0: other machines reach it, and there is no login"):
        served(app, "0.0.0.0")


@pytest.mark.parametrize(
    ("env", "headers", "expected"),
    [
        ({PASSWORD: HASH}, {"auth": ("ann", "open sesame")}, 200),
        ({PASSWORD: HASH}, {"auth": ("ann", "close sesame")}, 401),
        ({PASSWORD: HASH}, {}, 401),
        ({TOKEN: "t0ken"}, {"headers": {"Authorization": "Bearer t0ken"}}, 200),
        ({TOKEN: "t0ken"}, {"headers": {"Authorization": "Bearer token"}}, 401),
        ({TOKEN: "t0ken"}, {"auth": ("ann", "t0ken")}, 401),
        ({TOKEN: "t0ken"}, {}, 401),
    ],
)
def test_logins(app, env, headers, expected):
    client = served(app, "0.0.0.0", env)
    for _ in range(2):
        answer = client.get("/audit", **headers)
        assert answer.status_code == expected
    if expected == 401:
        assert answer.headers["WWW-Authenticate"].startswith("Basic" if PASSWORD in env else "Bearer")
        assert page(client, "/audit", **headers).links == ["#main", "/", "/audit.json"]  # what there is it does not say
    assert status(client, "/livez") == 200


def test_a_proxy_that_is_trusted_says_who_it_is(app):
    client = served(app, "0.0.0.0", user_header="X-User", proxies=["10.0.0.0/8"])
    assert status(client, remote="10.1.2.3", X_User="ann") == 200
    assert status(client, remote="10.1.2.3") == 401
    assert status(client, remote="11.1.2.3", X_User="ann") == status(client, remote="", X_User="ann") == 403
    as_wsgi_has_it = "ünn".encode().decode("latin-1")
    headers = {"X-User": as_wsgi_has_it, "X-Forwarded-Prefix": "/queue", "X-Forwarded-Host": "tasks.example"}
    found = page(client, "/", headers=headers, environ_base={"REMOTE_ADDR": "10.1.2.3"})
    assert "/queue/tasks" in found.links
    headers |= {"Origin": "https://tasks.example"}
    token = next(form["fields"]["token"] for form in _pause_forms(client, app, headers))
    answer = client.post(
        "/queues/mail/pause", data={"token": token}, headers=headers, environ_base={"REMOTE_ADDR": "10.1.2.3"}
    )
    assert answer.status_code == 303
    assert one(app, "SELECT WHO FROM QUEUE_AUDIT") == "ünn"


def _pause_forms(client, app, headers):
    app.task(name="t", queue="mail")(print).delay()
    found = page(client, "/queues/mail", headers=headers, environ_base={"REMOTE_ADDR": "10.1.2.3"})
    return [form for form in found.forms if form.get("method") == "post"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"user_header": "X-User"}, "--user-header needs --trust-proxy"),
        ({"user_header": "X-User", "proxies": ["10.0.0.0/33"]}, r"--trust-proxy '10\.0\.0\.0/33' is no network"),
        ({"env": {PASSWORD: "open sesame"}}, "must be a hash that fbtasks web --hash-password has printed"),
        ({"env": {PASSWORD: HASH.partition("$")[0]}}, "put it in single quotes, or a shell takes them for variables"),
    ],
)
def test_logins_that_cannot_be(app, options, error):
    with pytest.raises(ConfigurationError, match=error):
        served(app, **options)


OTHERS = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://["},
    {},
]


@pytest.mark.parametrize("headers", OTHERS)
def test_a_form_of_another_site_does_nothing(app, headers):
    app.task(name="t", queue="mail")(print).delay()
    client = browser(app)
    token = next(f["fields"]["token"] for f in page(client, "/queues/mail").forms if f.get("method") == "post")
    answer = client.post("/queues/mail/pause", headers=headers, data={"token": token})
    assert answer.status_code == 403
    assert one(app, "SELECT COUNT(*) FROM QUEUE_POLICY WHERE PAUSED = 1") == 0


def test_where_browsers_do_not_say_the_site_a_token_of_the_user_is_needed(app):
    app.task(name="t", queue="mail")(print).delay()
    users = {"who": "ann"}
    client = browser(app, authorize=lambda *_: users["who"])
    ours = {"Origin": "http://localhost"}
    token = next(f["fields"]["token"] for f in page(client, "/queues/mail").forms if f.get("method") == "post")
    assert client.post("/queues/mail/pause", headers=ours).status_code == 403
    users["who"] = "bob"
    assert client.post("/queues/mail/pause", headers=ours, data={"token": token}).status_code == 403
    users["who"] = "ann"
    assert client.post("/queues/mail/pause", headers=ours, data={"token": token}).status_code == 303
    other = browser(app, authorize=lambda *_: "ann", secret="shared")
    same = browser(app, authorize=lambda *_: "ann", secret="shared")
    token = next(f["fields"]["token"] for f in page(other, "/queues/mail").forms if f.get("method") == "post")
    assert same.post("/queues/mail/resume", headers=ours, data={"token": token}).status_code == 303


def test_rights_by_action_and_queue(app):
    for queue in ("mail", "sms"):
        app.task(name=f"t.{queue}", queue=queue)(print).delay()
    asked = []

    def authorize(request, action, queue):
        asked.append((action, queue))
        return action == "look" or (action, queue) == ("pause", "mail")

    client = browser(app, authorize)
    assert page(client, "/queues/mail").buttons == {"/queues/mail/pause", "/tasks"}
    assert ("look", None) in asked
    assert ("purge", "mail") in asked
    assert client.post("/queues/mail/pause", headers=SAME).status_code == 303
    for path in ("/queues/sms/pause", "/queues/mail/purge", "/bulk/cancel?q=state:ready"):
        assert client.post(path, headers=SAME).status_code == 403
        assert client.get(path).status_code == 403
    assert browser(app, lambda *_: False).get("/").status_code == 403


def test_who_may_cancel_may_not_stop(app, claim):
    number = app.task(name="t")(print).delay().id

    def asked(action, may):
        client = browser(app, lambda request, action, queue: action in ("look", may))
        return client.post(f"/tasks/{number}/{action}", headers=SAME).status_code

    assert asked("stop", "stop") == 403  # it waits
    claim()
    assert asked("cancel", "cancel") == 403
    assert asked("cancel", "stop") == 303
    assert one(app, "SELECT ACTION FROM QUEUE_AUDIT") == "stop"


def test_an_object_is_no_permission(app, caplog):
    assert browser(app, lambda *_: object()).get("/").status_code == 500
    assert "it must be a user's name, True or False" in caplog.text


def test_read_only(app):
    number = app.task(name="t", queue="mail")(print).delay().id
    client = browser(app, read_only=True)
    for path in ("/queues/mail", f"/tasks/{number}", "/tasks?q=state:ready"):
        assert page(client, path).buttons == {"/tasks"}
    for path in (f"/tasks/{number}/cancel", f"/tasks/{number}/run", "/queues/mail/purge", "/bulk/cancel?q=state:ready"):
        assert client.post(path, headers=SAME).status_code == 403
    assert (
        one(app, "SELECT (SELECT COUNT(*) FROM QUEUE_TASK) || (SELECT COUNT(*) FROM QUEUE_AUDIT) FROM RDB$DATABASE")
        == "10"
    )


def test_all_answers_have_the_headers(app):
    client = browser(app)
    for path in ("/", "/overview.json", "/nix", "/static/live.js", "/livez"):
        headers = client.get(path).headers
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "no-store" in headers["Cache-Control"] or path.startswith("/static")


def test_what_is_said_comes_from_the_dashboard_alone(app):
    client = browser(app)
    assert "Call 0800" not in client.get("/audit?said=Call+0800&seal=0").text


def test_hidden_arguments_are_not_found_either(app):
    number = app.task(name="t")(print).delay("4711").id
    client = browser(app, arguments="hidden")
    assert "4711" not in client.get(f"/tasks/{number}").text + client.get(f"/tasks/{number}/run").text
    assert client.get("/tasks?q=state:ready+arg.0:4711").status_code == 400
    assert browser(app).get("/tasks?q=state:ready+arg.0:4711").status_code == 200
    assert browser(app, redact=["card"]).get("/tasks?q=arg.a.CARD_no:4711").status_code == 400


async def allowing(*_):
    return True


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"authorize": True}, "authorize True must be a function"),
        ({"authorize": allowing}, "and no coroutine"),
        ({"redact": "card"}, "redact 'card' must be a list"),
        ({"links": {"shop.*": 5}}, "must have addresses by names of tasks"),
        ({"links": ["shop.*"]}, "must have addresses by names of tasks"),
        ({"secret": ""}, "secret must be text or bytes, and not empty"),
        ({"arguments": "no"}, "arguments 'no' must be 'shown'"),
        ({"read_only": 1}, "read_only 1 must be True or False"),
    ],
)
def test_options_that_cannot_be(app, options, error):
    with pytest.raises(ConfigurationError, match=error):
        dashboard(app, **{"authorize": lambda *_: True, **options})


def test_what_it_needs(app, monkeypatch):
    with pytest.raises(ConfigurationError, match="made without the feature 'web'"):
        dashboard(FBTasks("bare", app.settings.url.reveal(), features=[]), authorize=lambda *_: True)
    monkeypatch.setitem(sys.modules, "werkzeug.wrappers", None)
    for name in [each for each in sys.modules if each.startswith("fbtasks.features.web.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigurationError, match="not installed: pip install jinja2 waitress werkzeug"):
        dashboard(app, authorize=lambda *_: True)
