"""Writes docs/benchmarks/depth.md from the figures that the tests have left: ``python -m depth.page FOLDER PAGE``."""

import json
import sys
from pathlib import Path

HEAD = """# What it costs when much waits

Page fetches of one operation, by all processes that take part: with a thousand of something in the database, with
many more, and then after the operation was done often. A fetch is a look at one page of the database, in memory or
on disk. How many there are depends on the engine and the schema, not on the machine. `make depth` writes this page,
and `make test-thorough` compares smaller depths: [how](../how-to/benchmark.md#depth).

The embedded engine, one process, a cache of 512 pages. A command of `fbtasks` fetches about 3,000 pages before it
begins, since it connects; they are not taken off here. Seconds and megabytes are those of one machine.

An idle worker is one with `statistics=False`. With them one worker of all counts once a minute, for the charts of
dashboards, up to 100,000 tasks of each state in each queue. It does so for a fiftieth of its time at the most.
"""


def keep(found, kind, folder):
    """Writes the figures of a scene into *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {"name": kind.name, "about": kind.__doc__.strip(), "shallow": found.shallow, "deep": found.deep}
    figures["lines"] = [
        [
            _code(each.line.what),
            each.shallow.fetches,
            each.deep.fetches,
            each.worn.fetches if each.worn else "",
            each.deep.writes,
            each.deep.statements,
            each.line.fault or each.line.because,
        ]
        for each in found.lines
    ]
    figures["heavy"] = [
        [
            _code(str(each.heavy)),
            f"{each.seconds:.1f}",
            round(each.megabytes),
            round(each.worker_megabytes),
            f"{each.waited:.2f}",
        ]
        for each in found.heavy
    ]
    figures["idle"] = found.idle and [*map(round, found.idle), found.idle_fault and f": {found.idle_fault}"]
    (folder / f"{kind.name.replace(' ', '-')}.json").write_text(json.dumps(figures))


def _code(what):
    return f"`{what}`" if what.startswith("fbtasks") else what


def page(scenes):
    """The page of these scenes."""
    return HEAD + "".join(map(_section, scenes))


def _section(scene):
    depths = [f"{scene['shallow']:,}", f"{scene['deep']:,}"]
    heads = ["", *depths, "done often", "page writes", "statements", ""]
    text = f"\n## {scene['name'].capitalize()}\n\n{scene['about']}\n\n" + _table(heads, scene["lines"])
    if scene["idle"]:
        text += "\nAn idle worker fetches {:,} pages a second, then {:,}{}.\n".format(*scene["idle"])
    if scene["heavy"]:
        heads = [f"with all {depths[1]}", "seconds", "MB", "MB of a worker", "longest wait of a plain task, s"]
        text += "\n" + _table(heads, scene["heavy"])
    return text


def _table(heads, lines):
    rules = ["---", *("---:" for _ in heads[1:])]
    shown = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in line] for line in lines]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, rules, *shown))


def main(folder, into):
    """Writes the page."""
    from .table import SCENES

    names = [kind.name for kind in SCENES]
    scenes = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    Path(into).write_text(page(sorted(scenes, key=lambda scene: names.index(scene["name"]))))


if __name__ == "__main__":
    main(*sys.argv[1:])
