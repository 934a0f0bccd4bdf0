"""The pages of ``fbtasks top`` as lines: all lists, one task, a frame as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from fbtasks.cli import render
from fbtasks.cli.output import visible_line
from fbtasks.cli.top.lists import ODD, WRONG, List, lists, per_second, unserved
from fbtasks.cli.top.sight import MOST_FAILED, MOST_RUNNING, Opened, Sight
from fbtasks.sheet import MOST
from fbtasks.states import State
from fbtasks.system.showing import count

_MOST: Final = 20
"""Rows of each list in a frame that is printed as text."""

_HELP: Final = (
    f"Up to {MOST} tasks of a state are counted: {MOST}+ stands for more.",
    f"Of what runs {MOST_RUNNING} tasks are read, of what failed the last {MOST_FAILED}.",
    "SCHED are scheduled tasks, OLDEST is how long the first ready one has waited.",
    "DONE/S and other rates are those between the last two looks.",
)


def once(sight: Sight, url: str, width: int | None) -> list[Text]:
    """Returns the lines of a frame that is printed as text."""
    lines = [*head(sight, url, width, ""), alerts(sight)]
    if not lines[-1]:
        lines.pop()
    for each in lists(sight):
        lines += [Text(), *each.lines(each.chosen("", 0), 0, width, _MOST, None)]
    return lines


def joined(lines: Sequence[Text]) -> Text:
    """Returns the lines as one text, of which none is folded."""
    return Text("\n", no_wrap=True, overflow="crop", end="").join(lines)


def head(sight: Sight, url: str, width: int | None, remark: str) -> list[Text]:
    """Returns the first lines: which database it is, the time of the look and a *remark*, workers and rates."""
    right = f"{remark}{'  ' if remark else ''}{sight.overview.time.astimezone():%H:%M:%S}"
    name = "fbtasks top"
    url = visible_line(url)
    room = len(url) if width is None else max(1, width - len(name) - cell_len(right) - 4)
    if len(url) > room:
        url = f"…{url[len(url) - room + 1 :]}"
    alive = [worker for worker in sight.overview.workers if worker.alive]
    busy = f"{sum(worker.running for worker in alive)} of {sum(worker.concurrency for worker in alive)}"
    rates = sight.total
    return [
        Text.assemble((name, "bold"), f"  {url.ljust(room)}  {right}"),
        Text.assemble(
            f"{count(len(alive), 'worker')}, {busy} busy   started {per_second(rates.started)}/s  ",
            f"finished {per_second(rates.finished)}/s  ",
            (f"failed {per_second(rates.failed)}/s", WRONG if rates.failed else ""),
            f"  retried {per_second(rates.retried)}/s",
        ),
    ]


def alerts(sight: Sight) -> Text:
    """Returns a line of what is wrong; empty: nothing is."""
    workers = sight.overview.workers
    dead = [worker.name for worker in workers if not worker.alive]
    unseen = [row.queue for row in sight.overview.queues if unserved(row)]
    parts = []
    if not any(worker.alive for worker in workers):
        parts.append(("No worker is alive.", WRONG))
    elif unseen:
        parts.append((f"No worker serves {', '.join(unseen)}.", WRONG))
    if dead:
        parts.append((f"Dead: {', '.join(map(visible_line, dead))}.", WRONG))
    if sight.paused_names:
        parts.append((f"Paused tasks: {', '.join(map(visible_line, sight.paused_names))}.", ODD))
    return Text("  ").join(Text(*part) for part in parts)


def shares(needs: Sequence[int], room: int) -> list[int]:
    """Divides *room* among those that need so much: who needs less than a share leaves the rest to the others."""
    found = [0] * len(needs)
    left = len(needs)
    for place in sorted(range(len(needs)), key=needs.__getitem__):
        found[place] = min(needs[place], room // left)
        room -= found[place]
        left -= 1
    return found


def listed(
    all_lists: Sequence[tuple[List, list[object], int]], width: int, room: int, at: tuple[int, int]
) -> Iterator[Text]:
    """Yields the lines of all lists, each with its rows and its order, in at most *room* lines.

    *at*: the number of a list, and the place in it that is chosen. Where there is no room for all, it is shown alone.
    """
    if room < 4 * len(all_lists):
        all_lists, at = all_lists[at[0] : at[0] + 1], (0, at[1])
    between = int(room >= 7 * len(all_lists))
    heights = shares([len(rows) for _, rows, _ in all_lists], room - (2 + between) * len(all_lists))
    for number, ((each, rows, order), height) in enumerate(zip(all_lists, heights, strict=True)):
        yield from [Text()] * between
        yield from each.lines(rows, order, width, max(1, height), at[1] if number == at[0] else None)


def help(keys: Sequence[tuple[str, str]]) -> list[Text]:
    """Returns the lines that say what keys do, and what is to be known of what is shown."""
    return [
        *(Text.assemble((f"{key:>9}  ", "bold"), meaning) for key, meaning in keys),
        Text(),
        *map(Text, _HELP),
    ]


def task(found: Opened, width: int) -> list[Text]:
    """Returns the lines of one task."""
    indent = max(map(len, found.facts)) + 2
    lines = []
    for name, value in found.facts.items():
        wrong = name in ("ERROR", "STATE") and found.row.state is State.FAILED
        for number, line in enumerate(_wrapped(Text(value, WRONG if wrong else ""), width - indent)):
            lines.append(Text.assemble((("" if number else name).ljust(indent), "dim"), line))
    for why in found.why:
        lines += [Text(), *(Text(line, ODD) for line in render.problem_lines("It waits", why, width))]
    return [*lines, Text(), *_wrapped(Text(found.traceback), width)]


def _wrapped(text: Text, width: int) -> list[Text]:
    width = max(20, width)
    return [*text.wrap(Console(width=width), width, overflow="fold")]
