"""The dashboard in Chromium: `make test-web` runs these tests, `make test` does not."""

import os
import shutil
import sys
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect, sync_playwright
from support.dashboards import serving

from fbtasks import FBTasks

CHROMIUM = os.environ.get("FBTASKS_CHROMIUM") or shutil.which("chromium") or "chromium"
WAIT = 30_000
"""Milliseconds until a condition must have come true, on a busy machine."""
REPORT = "addEventListener('securitypolicyviolation', (e) => console.error('CSP', e.violatedDirective, e.blockedURI))"
expect.set_options(timeout=WAIT)


@pytest.fixture(scope="session")
def chromium(temporary):
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*options, "--disable-dev-shm-usage", "--force-color-profile=srgb"]
        )
        yield browser
        browser.close()


class Site:
    """A dashboard: its address, its project, and an app of the test on its database."""

    def __init__(self, address, project, app):
        self.address = address
        self.project = project
        self.app = app

    def url(self, path):
        return self.address + path.removeprefix("/")


@pytest.fixture(scope="module")
def make_site(make_project):
    """Serves the database of a project by ``fbtasks web``, as soon as *fill* has written what it holds."""

    @contextmanager
    def make(source, fill=lambda app, project: None):
        with make_project() as project:
            project.write(source)
            sys.modules.pop("proj", None)
            with closing(FBTasks("shop", project.url)) as app:
                fill(app, project)
                env = {**project.env, "PWD": str(project.folder)}
                with serving("-A", "proj", env=env, cwd=project.folder) as (_, address):
                    yield Site(address, project, app)

    return make


@pytest.fixture
def open_page(chromium):
    """Opens a page in a browser of its own. At the end of the test none may have had an error or left the site."""
    wrong, contexts = [], []

    def open_page(url, *, refused=(), **options):
        """*refused*: the errors of the page that the test asks for."""
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, "locale": "en-GB", **options})
        context.set_default_timeout(WAIT)
        contexts.append(context)
        if options.get("java_script_enabled", True):
            context.add_init_script(REPORT)
        page, host = context.new_page(), urlsplit(url).netloc

        def hear(message):
            if message.type in ("error", "warning") and not any(each in message.text for each in refused):
                wrong.append(f"{page.url}: {message.text}")

        page.on("console", hear)
        page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
        page.on("dialog", lambda dialog: (wrong.append(f"{page.url}: a dialog, {dialog.message}"), dialog.dismiss()))
        context.on("page", lambda other: other is page or wrong.append(f"{other.url} was opened"))
        context.on("request", lambda asked: urlsplit(asked.url).netloc == host or wrong.append(f"asked {asked.url}"))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
