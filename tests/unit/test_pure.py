"""Retry policy, URLs, settings, states."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fbtasks
from fbtasks import RetryPolicy
from fbtasks.config import Settings
from fbtasks.errors import ConfigurationError
from fbtasks.states import TRANSITIONS, State
from fbtasks.url import DatabaseURL, resolve_url


@given(st.integers(0, 10_000), st.floats(0.001, 1e6), st.floats(0, 1e6), st.booleans())
def test_delay_stays_within_its_cap(retries, base, cap, jitter):
    policy = RetryPolicy(retry_backoff=base, retry_backoff_max=cap, retry_jitter=jitter, default_retry_delay=1)
    assert 0 <= policy.delay(retries, None, random.Random(1)) <= cap


def test_decisions():
    rng = random.Random(1)
    policy = RetryPolicy(autoretry_for={OSError: 5, ConnectionError: 1}, max_retries=2)
    assert policy.decide(ConnectionResetError(), 1, None, rng) == 1
    assert policy.decide(FileNotFoundError(), 2, None, rng) == 5
    assert policy.decide(FileNotFoundError(), 3, None, rng) is None
    assert policy.decide(FileNotFoundError(), 300, 0, rng) == 5
    assert policy.decide(ValueError(), 1, None, rng) is None
    assert RetryPolicy(autoretry_for=(Exception,), dont_autoretry_for=(KeyError,)).decide(KeyError(), 1, 0, rng) is None


@pytest.mark.parametrize("bad", [{"max_retries": -1}, {"retry_backoff": -2}, {"autoretry_for": ("x",)}])
def test_policies_that_cannot_be(bad):
    with pytest.raises(ConfigurationError, match=next(iter(bad))):
        RetryPolicy(**bad)


def test_urls():
    local = DatabaseURL.parse("firebird:///var/db/q.fdb")
    assert (local.embedded, local.database) == (True, "/var/db/q.fdb")
    far = DatabaseURL.parse("firebird://me:p%40ss@db.example:3051//srv/q.fdb?role=worker")
    assert (far.database, far.port, far.password, far.options["role"]) == ("/srv/q.fdb", 3051, "p@ss", "worker")
    assert far.dsn == "inet://db.example:3051//srv/q.fdb"
    assert "p@ss" not in repr(far) + str(far)
    assert "***" in str(far)
    assert DatabaseURL.parse("firebird://h/alias").database == "alias"


@pytest.mark.parametrize("text", ["postgres://x", "firebird://u:secret@h", "firebird://h/x?color=red", "firebird:///",
                                  "firebird://u:secret@h:port/x", "firebird:///x#y"])  # fmt: skip
def test_urls_that_cannot_be(text):
    with pytest.raises(ConfigurationError) as caught:
        DatabaseURL.parse(text)
    assert "secret" not in str(caught.value)


def test_default_url(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FBTASKS_URL", raising=False)
    assert resolve_url(None).database == str(tmp_path / "fbtasks.fdb")
    monkeypatch.setenv("FBTASKS_URL", "firebird://h/a")
    assert resolve_url(None).host == "h"


def test_settings_are_checked():
    with pytest.raises(ConfigurationError, match="queue name"):
        Settings(url=resolve_url("firebird:///x/y"), default_queue="a b")


def test_every_transition_leads_to_a_state():
    assert set(TRANSITIONS) == set(State)


def test_public_names():
    assert sorted(fbtasks.__all__) == fbtasks.__all__
    assert all(callable(getattr(fbtasks, name)) for name in fbtasks.__all__)
    with pytest.raises(AttributeError, match="no attribute 'tsk'"):
        _ = fbtasks.tsk
    public = {n for n, v in vars(fbtasks).items() if not n.startswith("_") and type(v).__name__ != "module"}
    assert public - {"TYPE_CHECKING", "Any", "import_module"} == set(fbtasks.__all__)
