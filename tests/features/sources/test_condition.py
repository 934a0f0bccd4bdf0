"""What is looked at in a condition before the engine sees it: whether it stays in its parentheses."""

import pytest

from fbtasks.features.sources.store.condition import find_imbalance

OPENED, CLOSED = "a '(' has no ')' behind it", "a ')' has no '(' before it"


@pytest.mark.parametrize(
    ("when", "found"),
    [
        ("a = 1", None),
        ("(a = 1) OR (b IN (1, 2))", None),
        ("a = ')' OR b = 'it''s (' OR \"C)\" = 1", None),
        ('"a"")" = 1', None),
        ("a = 1 -- (or so", None),
        ("a = 1 -- (or\n OR b = 2", None),
        ("a = /* :-) */ 1", None),
        ("a = q'{)'(}' OR b = Q'!(!'", None),
        ("aq'(' = 1", None),
        ("a = x'28'", None),
        ("a) OR (b", CLOSED),
        ("(a", OPENED),
        ("a = q'{(}' OR (b", OPENED),
        ("a = 1 -- )\n)", CLOSED),
        ("a = '(' OR b)", CLOSED),
        ("a = '(", "the ' has no end"),
        ('a = "(', 'the " has no end'),
        ("a /* (", "the /* has no end"),
    ],
)
def test_what_is_not_balanced_is_found_outside_of_texts_names_and_comments(when, found):
    assert find_imbalance(when) == found
