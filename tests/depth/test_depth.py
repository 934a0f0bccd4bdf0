"""No operation costs more when more waits, or when it has been done often, but for those of which the table says so."""

import os
from pathlib import Path

import pytest

from .holding import Unique
from .messages import Backlog
from .page import keep
from .table import SCENES, faults, measure
from .waiting import Ended, Scheduled, Waiting

SHALLOW, DEEP, OFTEN, SECONDS = map(int, os.environ.get("FBTASKS_DEPTHS", "500,5000,20,0").split(","))
INTO = os.environ.get("FBTASKS_DEPTHS_INTO")
"""A folder that the figures are written into."""
ALWAYS = (Waiting, Scheduled, Ended, Unique, Backlog)


def variant(kind):
    """Returns the parameter of a scene: many are for a thorough run."""
    marks = [pytest.mark.slow] if kind.slow else [] if kind in ALWAYS else [pytest.mark.thorough]
    return pytest.param(kind, marks=marks)


@pytest.mark.embedded("a server reads the same pages")
@pytest.mark.parametrize("kind", list(map(variant, SCENES)), ids=lambda kind: kind.name.replace(" ", "-"))
def test_what_it_costs_does_not_grow_with_what_waits(project, kind):
    found = measure(kind, project, SHALLOW, DEEP, OFTEN, SECONDS)
    for each in found.lines:
        print(f"{each.line.what:45} {each.base:5} {each.shallow!s:50} {each.deep!s:50} {each.worn}")
    print(*found.heavy, found.idle, sep="\n")
    if INTO:
        keep(found, kind, Path(INTO))
    assert faults(found) == []
