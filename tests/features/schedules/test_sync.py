"""Definitions in code against what tables have: what is to be done, and that doing it leaves nothing to do."""

from hypothesis import given
from hypothesis import strategies as st

from fbtasks.queue.sync import sync

tables = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 2))


@given(tables, tables)
def test_each_key_is_in_one_part(wanted, found):
    plan = sync(wanted, found, int.__eq__)
    parts = [set(plan.create), set(plan.change), set(plan.keep), set(plan.orphans)]
    assert sum(map(len, parts)) == len(set().union(*parts)) == len(wanted.keys() | found.keys())
    assert all(wanted[key] != found[key] for key in plan.change)
    assert all(wanted[key] == found[key] for key in plan.keep)
    assert bool(plan) == (wanted != found)


@given(tables, tables)
def test_what_was_done_is_not_to_be_done_again(wanted, found):
    plan = sync(wanted, found, int.__eq__)
    done = found | plan.create | {key: want for key, (want, _) in plan.change.items()}
    again = sync(wanted, done, int.__eq__)
    assert (again.create, again.change) == ({}, {})
    assert again.orphans == plan.orphans  # kept
