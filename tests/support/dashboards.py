"""A browser for the dashboard: werkzeug's test client, with what a page is made of."""

import re
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
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        facts = dict(attrs)
        self.tags.append((tag, facts))
        if tag == "form":
            self.forms.append({**facts, "fields": {}})
        elif tag in ("input", "textarea") and self.forms:
            self.forms[-1]["fields"][facts.get("name")] = facts.get("value", "")

    def handle_data(self, data):
        self.texts.append(data)


class Page:
    """What a page has: its text, tags, links and forms."""

    def __init__(self, response):
        self.status = response.status_code
        read = _Reader(response.text)
        self.tags, self.forms = read.tags, read.forms
        self.text = re.sub(r"\s+", " ", " ".join(read.texts))
        self.links = [facts["href"] for tag, facts in read.tags if tag == "a" and "href" in facts]
        self.buttons = {form["action"] for form in read.forms if "action" in form}


def page(client, path, **how):
    return Page(client.get(path, **how))


def said(client, response):
    """The page that a deed leads to; the answer is a redirection."""
    assert response.status_code == 303, Page(response).text
    return page(client, response.headers["Location"])
