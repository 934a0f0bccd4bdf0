"""A browser for the dashboard: werkzeug's test client, with what a page is made of."""

import re
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from html.parser import HTMLParser

from werkzeug.test import Client

from fbtasks.features.web import dashboard

SAME = {"Sec-Fetch-Site": "same-origin"}
"""What a browser says of a form of ours."""


def browser(app, authorize=lambda request, action, queue: "ann", **options):
    return Client(dashboard(app, authorize=authorize, **options))


class _Reader(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.forms, self.texts = [], [], []
        self.inside, self.nested = 0, False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        facts = dict(attrs)
        self.tags.append((tag, facts))
        if tag == "a":
            self.nested = self.nested or self.inside > 0
            self.inside += 1
        if tag == "form":
            self.forms.append({**facts, "fields": {}})
        elif tag in ("input", "textarea") and self.forms:
            self.forms[-1]["fields"][facts.get("name")] = facts.get("value", "")

    def handle_endtag(self, tag):
        self.inside -= tag == "a"

    def handle_data(self, data):
        self.texts.append(data)


class Page:
    """What a page has: its text, tags, links and forms."""

    def __init__(self, response):
        self.status = response.status_code
        read = _Reader(response.text)
        self.tags, self.forms = read.tags, read.forms
        self.nested = read.nested
        """Whether a link is in another one."""
        self.text = re.sub(r"\s+", " ", " ".join(read.texts))
        self.links = [facts["href"] for tag, facts in read.tags if tag == "a" and "href" in facts]
        self.buttons = {form["action"] for form in read.forms if "action" in form}


def page(client, path, **how):
    return Page(client.get(path, **how))


def said(client, response):
    """The page that a deed leads to; the answer is a redirection."""
    assert response.status_code == 303, Page(response).text
    return page(client, response.headers["Location"])


@contextmanager
def serving(*arguments, **options):
    """``fbtasks web`` with *arguments*: its process, and the address that it says."""
    command = [sys.executable, "-m", "fbtasks", "web", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    try:
        said = ""
        while not (found := re.search(r"http://\S+/", said)):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            said += line
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


def addresses(site):
    """The addresses of all pages: those of the menu, and the first one that each of them leads to below itself."""

    def links(path):
        with urllib.request.urlopen(site + path.removeprefix("/"), timeout=60) as answer:
            read = _Reader(answer.read().decode())
        return [facts["href"] for tag, facts in read.tags if tag == "a" and facts.get("href", "").startswith("/")]

    first = links("/")
    menu = first[1 : first.index("/system") + 1]  # behind the name of the app
    below = (next((link for link in links(path) if link.startswith(f"{path}/")), None) for path in menu[1:])
    return [*menu, *filter(None, below)]


def is_seen_elsewhere(path):
    """Whether an address that was found in a page leads away, or to a page like others: of another search or time."""
    return not path.startswith("/") or bool(re.search("span=|[?+]name[=:]|[+](queue|worker|why|since):", path))
