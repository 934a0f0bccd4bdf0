"""The pages of a shop: for eyes, keys and readers of screens, on large and on small screens."""

import os
from io import BytesIO
from pathlib import Path

import pytest
import shop
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import expect
from support.dashboards import addresses

PICTURES = Path(__file__).parents[2] / "docs" / "images" / "dashboard"
SMALL = {"width": 360, "height": 720}
LARGE = {"width": 1280, "height": 400}


def too_wide(page):
    """What sticks out of the page on the right, with all of it opened; empty: nothing does."""
    return page.evaluate("""() => {
        for (const each of document.querySelectorAll("details")) each.open = true
        const root = document.documentElement, width = root.clientWidth
        if (root.scrollWidth <= width) return ""
        const wide = (each) => each.scrollWidth > width && getComputedStyle(each).overflowX === "visible"
        return [...document.body.querySelectorAll("*")].filter(wide).pop()?.outerHTML.slice(0, 200) ?? "something"
    }""")


@pytest.fixture(scope="module")
def site(make_site):
    with make_site(shop.SOURCE, shop.fill) as site:
        yield site


@pytest.fixture(scope="module")
def paths(site):
    app = site.app
    return [
        *addresses(site.address),
        "/?span=3h",
        "/queues/mail",
        *(f"/tasks?q=state:{state}" for state in ("failed", "waiting", "running")),
        "/tasks?q=stat:failed",
        "/tasks/999999",
        *(f"/tasks/{number}" for number in (app.tried, app.running, app.scheduled)),
        f"/tasks/{app.tried}/run",
        f"/tasks/{app.tried}/discard",
        "/bulk/retry?q=state:failed",
    ]


def test_no_page_is_wider_than_a_small_screen(site, paths, open_page):
    page, wide = open_page(site.address, viewport=SMALL, refused=["404", "400"]), {}
    for path in paths:
        page.goto(site.url(path))
        if found := too_wide(page):
            wide[path] = found
    assert wide == {}


def test_axe_finds_nothing(site, paths, open_page):
    axe, found = Axe(), {}
    page = open_page(site.address, bypass_csp=True, refused=["404", "400"])
    for path in paths:
        page.goto(site.url(path))
        page.emulate_media(color_scheme="light")
        wrong = axe.run(page).response["violations"]
        page.emulate_media(color_scheme="dark")
        wrong += axe.run(page, options={"runOnly": ["color-contrast"]}).response["violations"]
        for each in wrong:
            found.setdefault(f"{each['id']}: {each['help']}", []).append((path, each["nodes"][0]["html"][:200]))
    assert found == {}


def test_keys_alone(site, open_page):
    page = open_page(site.address)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
    order = []
    for _ in range(8):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.innerText"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outline")
        assert outline.endswith("2px"), outline
    assert order[1:6] == ["Overview", "Queues", "Tasks", "Workers", "Failures"]
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Failures").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Failures")
    page.keyboard.press("/")
    page.keyboard.type("state:failed timeout")
    page.keyboard.press("Enter")
    expect(page.locator("#q")).to_have_value("state:failed timeout")
    page.locator("h1").click()
    page.keyboard.press("g")
    page.keyboard.press("w")
    expect(page.get_by_role("heading", level=1)).to_have_text("Workers")
    page.keyboard.press("?")
    expect(page.get_by_role("button", name="Close")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_pictures_in_docs(site, open_page):
    app = site.app
    all_pages = addresses(site.address)

    def below(path):
        return next(each for each in all_pages if each.startswith(path))

    shots = {
        "overview": "/",
        "queues": "/queues",
        "queue": "/queues/mail?span=3h",
        "tasks": "/tasks?q=state:failed",
        "task": f"/tasks/{app.tried}",
        "workers": "/workers",
        "worker": below("/workers/"),
        "failures": "/failures",
        "failure": below("/failures/"),
        "workflows": "/workflows",
        "workflow": below("/workflows/"),
        "audit": "/audit",
        "system": "/system",
        "run": f"/tasks/{app.tried}/run",
    }
    looks = [(name, path, {"viewport": LARGE}) for name, path in shots.items()]
    looks += [
        ("overview-dark", "/", {"viewport": LARGE, "color_scheme": "dark"}),
        ("overview-small", "/", {"viewport": SMALL}),
    ]
    if os.environ.get("FBTASKS_WRITE"):
        for name, path, options in looks:
            picture(open_page, site, path, PICTURES / f"{name}.png", **options)
    written = {path.stem: path.stat().st_size for path in PICTURES.glob("*.png")}
    assert written.keys() == {name for name, _, _ in looks}
    assert max(written.values()) < 65_000


HIDE = """(folder) => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(folder, "/var/lib/shop")
}"""


def picture(open_page, site, path, file, **options):
    """Writes a picture of what a reader sees of a page at first."""
    page = open_page(site.url(path), timezone_id="Europe/Berlin", **options)
    page.evaluate(HIDE, str(site.project.folder.parent))
    height = min(page.evaluate("document.documentElement.scrollHeight"), 900 if path == "/" else 720)
    clip = {"x": 0, "y": 0, "width": options["viewport"]["width"], "height": height}
    data = page.screenshot(full_page=True, clip=clip)
    page.close()
    file.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(BytesIO(data)) as image:
        few(image.convert("RGB")).save(file, optimize=True)


def few(image):
    """The image in the 48 colours that it has most of: those of areas stay as they are."""
    most = sorted(image.getcolors(1 << 24), reverse=True)[:48]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in most for part in colour])
    return image.quantize(palette=palette, dither=Image.Dither.NONE)
