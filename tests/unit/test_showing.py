"""Texts for people: numbers with the word for what is counted."""

import pytest

from fbtasks.system.showing import count


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 tasks"), (1, "1 task"), (2, "2 tasks"), (1_234_567, "1234567 tasks"), (1.0, "1 task"), (0.3, "0.3 tasks")],
)
def test_what_is_counted_is_in_the_plural_unless_it_is_one(number, shown):
    assert count(number, "task") == shown
