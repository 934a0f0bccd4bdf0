"""The table of states."""

from fbtasks.states import TRANSITIONS, State


def test_every_transition_leads_to_a_state():
    assert set(TRANSITIONS) == set(State)
