"""Pages refresh themselves, and leave the reader what he has in hand."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import expect
from support.sql import one

SOURCE = """
import time
from pathlib import Path
app = FBTasks("shop")
HERE = Path(__file__).parent

@app.task(name="shop.send_invoice")
def send_invoice(order):
    return f"INV-{order:06d}"

@app.task(name="shop.wait")
def wait(name):
    while not (HERE / name).exists():
        time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def site(make_site):
    with make_site(SOURCE) as site:
        site.project.worker("-c", "2", "-P", "threads", "-n", "web1")
        run(site, 1)
        yield site


def run(site, *orders):
    """Has the worker run tasks. Returns their numbers."""
    results = [site.app.send_task("shop.send_invoice", (order,)) for order in orders]
    for result in results:
        result.get(timeout=60)
    return [result.id for result in results]


class Clock:
    """The time of a page, which passes as the test says."""

    def __init__(self, page):
        self._page, self.asked = page, 0
        page.on("request", self._hear)
        page.clock.install()
        page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 3600)  # it must not have come before that is asked
        page.reload()

    def _hear(self, request):
        self.asked += request.resource_type == "fetch"

    def passes(self, seconds):
        """Returns how often the page asks for itself meanwhile."""
        before = self.asked
        self._page.clock.run_for(1000 * seconds)
        self._page.evaluate("0")  # behind the requests that the page has begun
        return self.asked - before


@pytest.fixture
def at(site, open_page):
    """Opens a page with its time in the hand of the test."""

    def at(path, **options):
        page = open_page(site.url(path), **options)
        return page, Clock(page)

    return at


def test_figures_change_by_themselves(site, open_page):
    page = open_page(site.address)
    run(site, *range(5))
    ended = one(site.app, "SELECT SUM(SUCCEEDED) FROM QUEUE_STAT")  # what the page shows first is up to a second old
    expect(page.locator("a.stat.succeeded b")).to_have_text(str(ended))
    held = site.app.send_task("shop.wait", ("here",))
    expect(page.locator("a.stat.running b")).to_have_text("1")
    (site.project.folder / "here").touch()
    held.get(timeout=60)
    expect(page.locator("a.stat.running b")).to_have_text("0")


def test_focus_stays_with_its_task_when_others_come_before_it(site, open_page):
    (number,) = run(site, 1)
    page = open_page(site.url("/tasks"))
    link = page.get_by_role("link", name=str(number), exact=True)
    link.focus()
    (newer,) = run(site, 2)
    expect(page.get_by_role("link", name=str(newer), exact=True)).to_be_visible()
    expect(link).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text(str(number))


def test_what_was_opened_and_typed_stays(site, open_page):
    page = open_page(site.url("/tasks"))
    hints = page.locator("details.hints")
    hints.locator("summary").click()
    page.locator("#q").fill("name:shop.* half a")
    page.locator("#q").blur()
    (number,) = run(site, 3)
    expect(page.get_by_role("link", name=str(number), exact=True)).to_be_visible()
    expect(page.locator("#q")).to_have_value("name:shop.* half a")
    expect(hints.locator("p")).to_be_visible()


def test_a_list_rests_while_rows_of_it_are_ticked(site, at):
    (number,) = run(site, 3)
    page, clock = at("/tasks")
    tick = page.get_by_role("checkbox", name=f"Task {number}", exact=True)
    tick.check()
    page.locator("h1").click()
    (newer,) = run(site, 4)
    assert clock.passes(20) == 0
    expect(tick).to_be_checked()
    tick.uncheck()
    page.locator("h1").click()
    assert clock.passes(2) == 1
    expect(page.get_by_role("link", name=str(newer), exact=True)).to_be_visible()


def test_tables_of_charts_stay_open(site, open_page):
    page = open_page(site.url("/queues/default"))
    chart = page.locator("figure.chart", has_text="Throughput")
    chart.locator("summary").click()
    before = page.locator("a.stat.succeeded b").inner_text()
    run(site, 4)
    expect(page.locator("a.stat.succeeded b")).not_to_have_text(before)
    expect(chart.locator("tbody td").first).to_be_visible()


def test_tips_of_charts_are_in_the_zone_of_their_axis(site, at):
    page, clock = at("/", timezone_id="Asia/Kolkata")
    chart = page.locator("figure.chart", has_text="Throughput")
    for seconds in (0, 2):  # as it came, and fetched anew
        clock.passes(seconds)
        tip = chart.locator("rect.hover title").first.evaluate("(tip) => [tip.textContent, Number(tip.dataset.at)]")
        lines = tip[0].split("\n")
        assert lines[0] == chart.locator(".axis time").first.inner_text()
        assert lines[0] == f"{datetime.fromtimestamp(tip[1], ZoneInfo('Asia/Kolkata')):%H:%M}"
        assert [line.split()[0] for line in lines[1:]] == ["succeeded", "failed", "cancelled", "retried"]


def test_it_rests_while_it_is_paused_hidden_or_typed_into(site, at):
    page, clock = at("/")
    assert clock.passes(2) == 1
    page.keyboard.press("p")
    assert clock.passes(20) == 0
    expect(page.locator("#every")).to_have_value("0")
    page.keyboard.press("p")
    assert clock.passes(3) > 0
    page.evaluate("Object.defineProperty(document, 'hidden', { configurable: true, get: () => true })")
    assert clock.passes(20) == 0
    page.evaluate("delete document.hidden")
    assert clock.passes(2) > 0
    page.keyboard.press("/")
    page.keyboard.type("inv")
    assert clock.passes(20) == 0
    expect(page.locator("header input")).to_have_value("inv")
    page.locator("header input").blur()
    assert clock.passes(2) > 0
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert clock.passes(20) == 0


def test_it_says_when_there_is_no_answer(site, at):
    page, clock = at("/", refused=["ERR_CONNECTION_REFUSED", "net::ERR_FAILED"])
    page.context.route("**/*", lambda route: route.abort())
    clock.passes(2)
    expect(page.get_by_text("No answer")).to_be_visible()
    page.context.unroute("**/*")
    clock.passes(2)
    expect(page.get_by_text("No answer")).to_be_hidden()


ROWS_AND_NEXT = """() => [
    [...document.querySelectorAll("table.tasks td.n a")].map((each) => each.text),
    document.querySelector("a[rel=next]")?.href,
]"""


def test_each_task_is_on_one_page_of_a_list_while_others_end(site, open_page):
    wanted = run(site, *range(120))
    page, seen = open_page(site.url("/tasks?q=state:succeeded")), []
    while True:
        # Rows and link in one step, of one refresh. A click returns before the next page has its rows; goto waits.
        rows, following = page.evaluate(ROWS_AND_NEXT)
        seen += rows
        run(site, *range(7))
        if not following:
            break
        page.goto(following)
    assert len(seen) == len(set(seen))
    assert {str(number) for number in wanted} <= set(seen)
