"""Redaction of texts and values: nothing behind a secret name is shown, and no text takes long."""

import json
import time
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fbtasks.features.web.redaction import REDACTED, Redaction

pytestmark = pytest.mark.no_database

CANARY = "5ab1e"
redaction = Redaction(REDACTED)
unquoted = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\"'`")).filter(
    lambda text: not redaction.is_secret(text)
)
PIECES = [
    *"\\\"'`()[]{}<>:=,;@/ \n\t.-_ax|",
    "://", "password", "api-key", "Token", "error", '"""', '\\"', "(not shown)", "\\\\",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES)).map("".join)


@st.composite
def names(draw):
    """Names of secrets, in any case, with other words around them, and separators in them."""
    word = draw(st.sampled_from(REDACTED)).replace("_", draw(st.sampled_from(["", "_", "-", " "])))
    separators = st.sampled_from(["", "", "", "_", "-", "."])
    cased = [draw(st.sampled_from([each, each.upper() + draw(separators)])) if each != "-" else each for each in word]
    before, after = draw(st.sampled_from(["", "X-", "my_", "card."])), draw(st.sampled_from(["", "s", "-id"]))
    return f"{before}{''.join(cased)}{after}"


@given(unquoted, names(), unquoted)
@example("", "Authorization", ": Token ")
@example("", "password", "=ab;")
@example("", "password", "Error: ")
def test_all_behind_a_secret_name_is_hidden_to_the_end_of_the_line(before, name, between):
    assert redaction.is_secret(name)
    seen = redaction.text(f"{before} {name}{between}{CANARY}\nnext" if before.isalnum() else f"{name}{between}{CANARY}")
    assert CANARY not in seen


@given(names(), st.text(), st.integers(0, 3), st.sampled_from([repr, json.dumps, partial(json.dumps, indent=1)]))
@example("pwd", "]", 0, partial(json.dumps, indent=1))
def test_a_quoted_value_is_hidden_however_often_its_quotes_are_escaped(name, value, levels, dumped):
    text = dumped({"n": 1, name: f"{value}{CANARY}", "of": {name: [value, CANARY]}})
    for _ in range(levels):
        text = json.dumps({"text": text})
    assert CANARY not in redaction.text(text)
    assert CANARY not in redaction.value(text)
    assert CANARY not in json.dumps(redaction.value([[text], {name: [CANARY]}]))


@given(texts)
def test_what_was_hidden_stays_as_it_is(text):
    seen = redaction.text(text)
    assert redaction.text(seen) == seen


@given(st.text())
def test_a_text_without_secret_names_is_shown_as_it_is(text):
    if not redaction.is_secret(text) and "://" not in text:
        assert redaction.text(text) == text
        assert redaction.value(text) == text


@settings(max_examples=20)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join))
@example('password="')
@example("password\n")
@example("password=\\\\")
@example("password='a'),")
@example("://a:")
@example('{"a":')
def test_no_text_takes_long(part):
    text = part * (100_000 // len(part))
    began = time.process_time()
    redaction.text(text)
    redaction.value(text)
    assert time.process_time() - began < 3  # what is read again for each part takes minutes
