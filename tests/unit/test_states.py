"""The table of states."""

from support.rules import TRANSITIONS

from fbtasks.states import State


def test_every_transition_leads_to_a_state():
    assert set(TRANSITIONS) == set(State)
