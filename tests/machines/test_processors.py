"""The processors for which the engine is installed with fbtasks."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("system", "processor", "comes"),
    [
        ("linux", "armv7l", True),
        ("linux", "riscv64", False),
        ("darwin", "arm64", False),
        ("win32", "AMD64", True),
    ],
)
def test_the_engine_is_installed_where_there_is_a_wheel_of_it(system, processor, comes):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (engine,) = [each for each in map(Requirement, project["dependencies"]) if each.name == "firebird-embedded"]
    assert engine.marker.evaluate({"sys_platform": system, "platform_machine": processor}) is comes
