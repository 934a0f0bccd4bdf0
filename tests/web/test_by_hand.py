"""What operators do, with JavaScript and without."""

import re

import pytest
from playwright.sync_api import expect
from support.sql import execute

SOURCE = """
from pathlib import Path
app = FBTasks("shop")

@app.task(name="shop.charge", max_retries=0)
def charge(order):
    if not Path(f"paid{order}").exists():
        raise ValueError(f"order {order} is not paid")
    return order

@app.task(name="mail.send", queue="mail")
def send(to):
    return to
"""
BOTH = pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])


@pytest.fixture(scope="module")
def site(make_site):
    with make_site(SOURCE) as site:
        site.project.worker("-c", "1", "-P", "threads", "-n", "web1", "-Q", "default")
        site.app.send_task("shop.charge", (1,)).get(timeout=60, propagate=False)  # the worker is there
        yield site


def said(page):
    return page.get_by_role("status")


@BOTH
def test_a_failure_is_retried_by_its_worker(site, open_page, script):
    order = 100 + script
    result = site.app.send_task("shop.charge", (order,))
    result.get(timeout=60, propagate=False)
    page = open_page(site.url("/failures"), java_script_enabled=script)
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Tasks").click()
    page.locator("#q").fill(f"state:failed arg.0:{order} not paid")
    page.locator("#q").press("Enter")
    page.get_by_role("link", name="shop.charge").click()
    expect(page.get_by_text(f"ValueError: order {order} is not paid").first).to_be_visible()
    (site.project.folder / f"paid{order}").touch()
    page.get_by_role("button", name="Retry").click()
    expect(said(page)).to_have_text("The task is put back.")
    assert result.get(timeout=60) == order
    if script:
        expect(page).not_to_have_url(re.compile("seal="))  # what was said is not said again
        expect(page.get_by_role("heading", level=1)).to_contain_text("succeeded")
    else:
        page.reload()
        expect(page.get_by_role("heading", level=1)).to_contain_text("succeeded")
    page.get_by_role("link", name="Audit").click()
    expect(page.get_by_role("row").filter(has_text=f"task {result.id} (shop.charge)")).to_contain_text("retry")


@BOTH
def test_a_search_is_cancelled_as_a_whole(site, open_page, script):
    execute(site.app, "DELETE FROM QUEUE_TASK")
    send = [site.app.send_task("mail.send", (f"{n}@example.com",), queue="mail") for n in range(60)]
    kept = site.app.send_task("other.task", queue="mail")
    page = open_page(site.url("/queues/mail"), java_script_enabled=script)
    page.locator("a.stat.ready").click()
    expect(page.locator("#q")).to_have_value("state:ready queue:mail")
    page.locator("#q").fill("state:ready queue:mail name:mail.*")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("table.tasks tr[id]")).to_have_count(50)
    page.get_by_role("button", name="Cancel all").click()
    expect(page.get_by_text(re.compile("Cancel 60 tasks"))).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(said(page)).to_contain_text("60")
    expect(page.get_by_text("No task.")).to_be_visible()
    assert {site.app.AsyncResult(each.id).state for each in send} == {"REVOKED"}
    assert kept.state == "PENDING"


@BOTH
def test_rows_that_are_ticked_are_cancelled_alone(site, open_page, script):
    execute(site.app, "DELETE FROM QUEUE_TASK")
    send = [site.app.send_task("mail.send", (f"{n}@example.com",), queue="mail") for n in range(4)]
    page = open_page(site.url("/tasks?q=state:ready"), java_script_enabled=script)
    expect(page.get_by_role("button", name="Cancel all")).to_be_visible()
    expect(page.get_by_role("checkbox", name="All on this page")).to_be_visible(visible=script)
    for result in (send[1], send[2]):
        page.get_by_role("checkbox", name=f"Task {result.id}", exact=True).focus()
        page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Cancel all")).to_be_hidden()
    page.get_by_role("button", name="Cancel ticked").click()
    expect(page.get_by_text("Cancel 2 tasks?")).to_be_visible()
    expect(page.get_by_text(f"tasks {send[1].id}, {send[2].id}")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(said(page)).to_have_text("Cancel: 2 tasks of 2.")
    expect(page.locator("#q")).to_have_value("state:ready")
    assert [each.state for each in send] == ["PENDING", "REVOKED", "REVOKED", "PENDING"]
    if script:
        page.get_by_role("checkbox", name="All on this page").check()
        expect(page.get_by_role("checkbox", checked=True)).to_have_count(3)
        page.get_by_role("checkbox", name=f"Task {send[0].id}", exact=True).uncheck()
        expect(page.get_by_role("checkbox", checked=True)).to_have_count(1)
        page.get_by_role("button", name="Cancel ticked").click()
        expect(page.get_by_text(f"tasks {send[3].id}")).to_be_visible()


def test_a_search_is_completed(site, open_page):
    page = open_page(site.url("/tasks?q=state:failed"))

    def offered():
        return page.locator("#known option").evaluate_all("(all) => all.map((each) => each.value)")

    assert {"state:ready", "why:limit", "queue:default", "name:shop.charge"} <= {*offered()}
    for line in (page.locator("#q"), page.locator("header input")):
        line.fill("state:failed na")
        assert "state:failed name:shop.charge" in offered()
        assert not any("state:ready" in each for each in offered())  # a state is said already
    page.locator("#q").fill("")
    assert "state:ready" in offered()


def test_a_search_is_narrowed_without_script(site, open_page):
    page = open_page(site.url("/tasks?q=state:ready"), java_script_enabled=False)
    page.get_by_text("Narrow the search").click()
    page.locator(".hints").get_by_role("link", name="mail.send", exact=True).click()
    expect(page.locator("#q")).to_have_value("state:ready name:mail.send")


def test_a_search_says_what_it_does_not_know(site, open_page):
    page = open_page(site.url("/tasks"), refused=["400"])
    page.locator("#q").fill("stat:failed")
    page.locator("#q").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Did you mean 'state'?")
    expect(page.locator("#q")).to_have_value("stat:failed")
    page.get_by_role("navigation", name="States").get_by_role("link", name="succeeded").click()
    expect(page.locator("#q")).to_have_value("state:succeeded")


def test_a_task_is_called_again_with_other_arguments(site, open_page):
    (site.project.folder / "paid7").touch()
    result = site.app.send_task("shop.charge", (6,))
    result.get(timeout=60, propagate=False)
    page = open_page(site.url(f"/tasks/{result.id}"), refused=["400"])
    page.get_by_role("button", name="Run again").click()
    page.get_by_label("order").fill("sev")
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_role("alert")).to_contain_text("is not JSON")
    page.go_back()
    page.get_by_label("order").fill("7")
    page.get_by_role("button", name="Run again").click()
    expect(said(page)).to_contain_text("Enqueued as task")
    number = re.search(r"task (\d+)", said(page).inner_text())[1]
    assert site.app.AsyncResult(number).get(timeout=60) == 7
