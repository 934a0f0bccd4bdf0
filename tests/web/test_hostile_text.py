"""Names, arguments and errors that anybody may write are text on all pages."""

import json
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from support.dashboards import addresses
from support.draining import drain
from support.registering import register
from support.sql import execute
from test_looks import SMALL, too_wide

from fbtasks import chain, group

TAGS = "</title></svg><script>alert(1)</script>"
IMAGE = "\"><img src=x onerror=alert(2)>'"
ODD = "%2e%00 %s {{7*7}} ${7*7} \x1b[31m\x07 \u202eabc\u2066 \ufeff\u200b"
LONG = "W" * 2000
NAMES = (TAGS, IMAGE, "%2f..%2f" + ODD[:8], "N" * 255)
TEXTS = (TAGS, IMAGE, ODD, LONG)
SURROGATE = json.dumps([["\ud800 half", TAGS], {IMAGE: "\udfff"}, {}])


def fill(app, project):
    @app.task(name="shop.fail", max_retries=0)
    def fail(text, **more):
        raise ValueError(text.replace("half", "\ud800 half"))

    @app.task(name=TAGS, max_retries=0)
    def tags(*_):
        return TAGS

    for text in TEXTS:
        fail.delay(text, **{text[:200]: text})
    fail.delay("half")
    chain(tags.s(IMAGE), group(tags.s(LONG), fail.s()), tags.s(TAGS)).delay()
    drain(app)
    for name in NAMES:
        app.send_task(name, TEXTS, queue="mail")
        app.send_task(name, TEXTS, queue="mail", countdown=900)
    app.limit(TAGS[:60], at_once=1)
    register(app, name=TAGS, host=IMAGE, queues=["mail"], tasks=list(NAMES))
    register(app, name=LONG[:200], host=LONG[:60], queues=["mail", "q" * 63, *(f"queue{n}" for n in range(40))])
    execute(app, "UPDATE QUEUE_TASK SET PAYLOAD = ? WHERE NAME = ?", SURROGATE.encode(), TAGS)
    for text in TEXTS:
        execute(
            app,
            "INSERT INTO QUEUE_AUDIT VALUES (NEXT VALUE FOR QUEUE_AUDIT_SEQ, QUEUE_NOW(), ?, ?, ?, ?, ?)",
            text[:255], text[:255], text[:1000], text, text[:63],
        )  # fmt: skip


@pytest.fixture(scope="module")
def site(make_site):
    with make_site("app = FBTasks('</title><script>alert(0)</script>')", fill) as site:
        yield site


@pytest.fixture(scope="module")
def paths(site):
    tasks = [number for (number,) in execute(site.app, "SELECT ID FROM QUEUE_TASK UNION SELECT ID FROM QUEUE_HISTORY")]
    workers = execute(site.app, "SELECT ID FROM QUEUE_PROCESS")
    return [
        *addresses(site.address),
        *(f"/workers/{number}" for (number,) in workers),
        f"/queues/{'q' * 63}",
        *(f"/tasks?q=state:{state}" for state in ("failed", "waiting", "succeeded")),
        *(f"/tasks/{number}" for number in tasks),
        *(f"/tasks?q={quote(text)}" for text in (TAGS, IMAGE, ODD)),
        f"/{quote(TAGS, safe='')}",
        f"/failures/{quote(IMAGE, safe='')}?said={quote(TAGS)}&seal=1",
        f"/tasks/{tasks[0]}/run",
        f"/tasks/{tasks[-1]}/cancel",
    ]


def test_it_is_text_and_fits(site, paths, open_page):
    page, seen, wide = open_page(site.address, viewport=SMALL, refused=["400", "404"]), "", {}
    for path in paths:
        page.goto(site.url(path))
        expect(page.locator("main")).to_be_visible()
        assert page.locator("script").count() == 2, path
        assert page.locator("main img, main script, main iframe").count() == 0, path
        if found := too_wide(page):
            wide[path] = found
        seen += page.content()
        text = page.locator("main").inner_text()
        assert not {"\x1b", "\u202e", "\u2066", "\ufeff"}.intersection(text), path
        seen += text
    assert wide == {}
    for text in (TAGS, IMAGE, "{{7*7}}", "\\x1b[31m", "\\u202eabc", "\\ud800 half"):
        assert text in seen, text


def test_links_with_it_lead_to_it(site, open_page):
    page = open_page(site.url("/"))
    names = page.locator("section").filter(has=page.get_by_role("heading", name="By task"))
    names.get_by_role("link", name=TAGS).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Tasks")
    assert TAGS in page.locator("#q").input_value()
    page.locator("table.tasks").get_by_role("link", name=TAGS).first.click()
    expect(page.locator("p.title")).to_have_text(TAGS)
    assert page.title().startswith(page.locator("h1").inner_text().split()[2] + f" {TAGS}")
    page.get_by_role("link", name="Workers").click()
    page.get_by_role("link", name=TAGS).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(TAGS)


def test_axe_finds_nothing(site, paths, open_page):
    page, axe, found = open_page(site.address, bypass_csp=True, viewport=SMALL, refused=["400", "404"]), Axe(), {}
    for path in dict.fromkeys(each for each in paths if "/tasks/" not in each):
        page.goto(site.url(path))
        for each in axe.run(page).response["violations"]:
            found.setdefault(f"{each['id']}: {each['help']}", []).append((path, each["nodes"][0]["html"][:200]))
    assert found == {}
