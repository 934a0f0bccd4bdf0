"""One limit of which two apps say something: which counts, and who is told."""

import json

import pytest
from support.programs import command_line

from fbtasks import FBTasks
from fbtasks.features.limits.operations import list_limits


@pytest.fixture
def make(url):
    """Makes the app of that name, whose limit sms is as it says; and brings it in, as a starting worker does."""
    apps = []

    def make(name, **limits):
        app = FBTasks(name, url)
        apps.append(app)
        for each, options in limits.items():
            app.limit(each, **options)
        with app.database.session() as session:
            return app.features["limits"].deploy(session).changes

    yield make
    for app in apps:
        app.close()


@pytest.fixture
def said(app):
    """What `limits list` has of the limit sms: its app, what is in force, and what each app says."""
    app.migrate()

    def said():
        (row,) = [row for row in list_limits(app.database) if row.name == "sms"]
        return row.app, row.at_once, row.says

    return said


BOTH = {"billing": "5 at once", "shop": "3 at once"}


def test_the_last_one_counts_and_what_the_other_says_is_kept(make, said):
    assert make("shop", sms={"at_once": 3}) == ["defined: sms"]
    assert said() == ("shop", 3, {})
    assert make("billing", sms={"at_once": 5}) == ["defined: sms (5 at once; the app shop says 3 at once)"]
    assert said() == ("billing", 5, BOTH)
    assert make("billing", sms={"at_once": 5}) == []
    make("other", mail={"at_once": 1})
    assert said() == ("billing", 5, BOTH)
    make("shop", sms={"at_once": 3})
    assert said() == ("shop", 3, BOTH)
    make("third", sms={"rate": "10/s"})
    assert said() == ("third", None, {**BOTH, "third": "10/s"})


def test_two_that_agree_are_nothing_to_tell(make, said):
    make("shop", sms={"at_once": 3})
    assert make("billing", sms={"at_once": 3}) == []
    assert said() == ("shop", 3, {})
    make("billing", sms={"at_once": 5})
    make("billing", sms={"at_once": 3})
    assert said() == ("billing", 3, {})


def test_an_app_that_comes_round_or_has_it_no_more_is_forgotten(make, said):
    make("shop", sms={"at_once": 3})
    make("billing", sms={"at_once": 5})
    make("shop", sms={"at_once": 5})
    assert said() == ("billing", 5, {})
    make("shop", sms={"at_once": 3})
    assert said() == ("shop", 3, BOTH)
    make("billing")
    assert said() == ("shop", 3, {})


def test_limits_list_and_health_show_who_says_what(app, make, said, url, capsys):
    make("shop", sms={"at_once": 3})
    make("billing", sms={"rate": "10/s"})
    command_line("limits", "list", "--url", url)
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first.split() == ["NAME", "LETS", "IN", "APP", "STATE", "IN", "WAITING", "KEYS"]
    assert second.split()[:5] == ["sms", "10/s", "(burst", "1)", "billing"]
    text = (
        "the app billing says 10/s, and that counts; the app shop says 3 at once. That of the app counts whose worker "
        "started last. Say the same in all of them, or give the limits names of their own"
    )
    assert " ".join(" ".join(rest).split()) == f"sms: {text}."
    command_line("limits", "list", "--json", "--url", url)
    (row,) = json.loads(capsys.readouterr().out)
    assert row["says"] == {"billing": "10/s", "shop": "3 at once"}
    command_line("health", "--url", url)
    done = capsys.readouterr()
    assert (done.err, done.out) == (f"limit sms: {text}\n", "no worker is alive (fbtasks worker -A MODULE)\n")
    command_line("doctor", "--url", url)
    assert "\nwarning: limit-disputed: limit sms: the app billing says 10/s, and that" in capsys.readouterr().out
