"""Geometry of charts and graphs, which templates draw as SVG. Charts hold no text, which would shrink with them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from fbtasks.sheet import Graph, Node, Spark
from fbtasks.system.showing import shorten, span

if TYPE_CHECKING:
    from fbtasks.features.web.store import Depth, Point, Version

WIDTH: Final = 600
HEIGHT: Final = 120
BOX: Final = (168, 44)
GAP: Final = (56, 16)


class Series(NamedTuple):
    """A line, or a part of bars."""

    name: str
    """Its label, and the class of its colour."""
    values: Sequence[float | None]
    shape: str = "bar"
    """``bar``, ``line`` or ``area``."""


class Slot(NamedTuple):
    """What a chart has at one moment."""

    x: float
    moment: datetime
    values: list[str]
    rects: list[tuple[str, float, float]]
    """Class, top and height of each part of its bar."""


class Chart(NamedTuple):
    """A chart, as a template draws it."""

    title: str
    top: str
    """What the upper edge stands for."""
    last: list[tuple[str, str]]
    """The series with their last values, or their sums."""
    slots: list[Slot]
    step: float
    paths: list[tuple[str, str, str]]
    """Class, shape and ``d`` of each line."""

    @property
    def names(self) -> list[str]:
        """The names of the series."""
        return [name for name, _ in self.last]


def throughput(points: Sequence[Point]) -> Chart:
    """Tasks that have ended, and tries that were not the last one."""
    names = ("succeeded", "failed", "cancelled", "retried")
    series = [Series(name, [getattr(point, name) for point in points]) for name in names]
    return draw("Throughput", [point.time for point in points], series, number, sums=True)


def percentiles(title: str, member: str, points: Sequence[Point]) -> Chart:
    """How long tasks ran, or waited: *member* is ``run`` or ``wait``."""
    found = [getattr(point, member) for point in points]
    series = [
        Series(name, [None if each is None else getattr(each, name) for each in found], "line")
        for name in ("p50", "p95", "p99")
    ]
    return draw(title, [point.time for point in points], series, span)


def backlog(points: Sequence[Point], depths: Sequence[Depth]) -> Chart:
    """What waited, over the time of *points*."""
    return _depths("Backlog", points, depths, {"ready": "line", "held": "line", "scheduled": "line"})


def use(points: Sequence[Point], depths: Sequence[Depth]) -> Chart:
    """How many of their places workers used, over the time of *points*."""
    return _depths("Workers", points, depths, {"busy": "area", "slots": "line"})


def _depths(title: str, points: Sequence[Point], depths: Sequence[Depth], shapes: Mapping[str, str]) -> Chart:
    moments = [point.time for point in points]
    found: list[Depth | None] = [None] * len(moments)
    for depth in depths:
        at = bisect_right(moments, depth.time) - 1
        if at >= 0:
            found[at : at + 2] = [depth] * len(found[at : at + 2])  # a minute without one has that of the last
    series = [
        Series(name, [None if each is None else getattr(each, name) for each in found], shape)
        for name, shape in shapes.items()
    ]
    return draw(title, moments, series, number)


def marks(points: Sequence[Point], versions: Iterable[Version]) -> list[tuple[float, Version]]:
    """Returns where in charts over the time of *points* each of *versions* begins."""
    if len(points) < 2:
        return []
    start, whole = points[0].time, (points[1].time - points[0].time) * len(points)
    return [(round(min(1.0, (each.time - start) / whole) * WIDTH, 1), each) for each in versions]


def number(value: float) -> str:
    """Returns a count."""
    return f"{value:,.0f}"


def draw(
    title: str,
    moments: Sequence[datetime],
    series: Sequence[Series],
    show: Callable[[float], str],
    *,
    sums: bool = False,
) -> Chart:
    """Returns a chart of *series* at *moments*. Bars of one moment are stacked. *sums*: of each its sum is said."""
    step = WIDTH / max(1, len(moments))
    columns = [[each.values[at] for each in series] for at in range(len(moments))]
    heights = [_height(column, series) for column in columns]
    top = _nice(max(heights, default=0) or 1)
    slots = [
        Slot(
            round(at * step, 1),
            moment,
            ["" if value is None else show(value) for value in columns[at]],
            list(_stacked(columns[at], series, top)),
        )
        for at, moment in enumerate(moments)
    ]
    paths = [
        (each.name, each.shape, _path(each.values, step, top, closed=each.shape == "area"))
        for each in series
        if each.shape != "bar"
    ]
    said = [(each.name, _said(each.values, show, sums=sums)) for each in series]
    return Chart(title, show(top), said, slots, round(step, 2), paths)


def _height(column: Sequence[float | None], series: Sequence[Series]) -> float:
    bars = sum(value or 0 for value, each in zip(column, series, strict=True) if each.shape == "bar")
    lines = (value or 0 for value, each in zip(column, series, strict=True) if each.shape != "bar")
    return max(bars, *lines, 0)


def _stacked(
    column: Sequence[float | None], series: Sequence[Series], top: float, least: float = 1.0
) -> Iterable[tuple[str, float, float]]:
    base = float(HEIGHT)
    for value, each in zip(column, series, strict=True):
        if value and each.shape == "bar":
            height = max(least, value / top * HEIGHT)  # one failure among thousands is seen
            base -= height
            yield each.name, round(max(0.0, base), 1), round(height, 1)


def _path(values: Sequence[float | None], step: float, top: float, *, closed: bool) -> str:
    """Returns the path of a line, which is broken where there is no value."""
    words, first = [], None
    for at, value in enumerate(values):
        if value is None:
            first = None
            continue
        x, y = at * step + step / 2, HEIGHT - value / top * (HEIGHT - 2) - 1
        words.append(f"{'M' if first is None else 'L'}{x:.1f} {y:.1f}")
        first = x if first is None else first
        if at + 1 == len(values) or values[at + 1] is None:
            words.append(f"L{x:.1f} {HEIGHT}L{first:.1f} {HEIGHT}Z" if closed else "h.1")
    return "".join(words)


def _said(values: Sequence[float | None], show: Callable[[float], str], *, sums: bool) -> str:
    known = [value for value in values if value is not None]
    if sums:
        return show(sum(known))
    return show(known[-1]) if known else "none"


def _nice(value: float) -> float:
    """Returns the next of 1, 1.5, 2, 3, 4, 6, 8, 10, 15, ..."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 1.5, 2, 3, 4, 6, 8, 10) if value <= factor * power * 1.000001)


def spark(given: Spark) -> list[tuple[str, float, float, float, float]]:
    """Returns the parts of the bars: class, x, y, width and height of each. The highest bar takes the whole height."""
    series = [Series(name, values) for name, values in given.values.items()]
    columns = list(zip(*given.values.values(), strict=True))
    top, step = max(map(sum, columns), default=0), WIDTH / max(10, len(columns))  # few bars are narrow, too
    return [
        (name, round(at * step, 1), y, round(step * 0.75, 1), height)
        for at, column in enumerate(columns)
        for name, y, height in _stacked(column, series, top, 8.0)
    ]


class Bit(NamedTuple):
    """A part of the time of a task: from *x* to *x* + *width* percent."""

    name: str
    text: str
    x: float
    width: float


def timeline(parts: Sequence[tuple[str, datetime, datetime]]) -> list[Bit]:
    """Returns the parts of a task's life, each with what was done then, side by side. None is too narrow to be seen."""
    seconds = [max(0.0, (end - start).total_seconds()) for _, start, end in parts]
    widths = [max(value / (sum(seconds) or 1), 0.02) for value in seconds]
    total, x, found = sum(widths), 0.0, []
    for (name, _, _), width, value in zip(parts, widths, seconds, strict=True):
        share = 100 * width / total
        found.append(Bit(name, span(value), round(x, 2), round(share, 2)))
        x += share
    return found


class Box(NamedTuple):
    """A node of a graph, with its place."""

    node: Node
    label: str
    x: int
    y: int


class Drawn(NamedTuple):
    """A graph, as a template draws it."""

    boxes: list[Box]
    arrows: list[str]
    width: int
    height: int


def graph(given: Graph) -> Drawn:
    """Returns *given* in columns: each node stands right of those that lead to it."""
    before: Mapping[int, list[int]] = defaultdict(list)
    for source, target in given.arrows:
        before[target].append(source)
    columns = _columns([node.id for node in given.nodes], before)
    nodes = {node.id: node for node in given.nodes}
    rows: dict[int, list[int]] = defaultdict(list)
    for number in nodes:
        rows[columns[number]].append(number)
    places: dict[int, tuple[int, int]] = {}
    order: dict[int, float] = {}
    for column in sorted(rows):
        rows[column].sort(key=lambda number: _mean([order[each] for each in before[number] if each in order]))
        for row, number in enumerate(rows[column]):
            order[number] = row
            places[number] = (column * (BOX[0] + GAP[0]) + 1, row * (BOX[1] + GAP[1]) + 1)
    arrows = [_arrow(places[one], places[two]) for one, two in given.arrows if one in places and two in places]
    boxes = [Box(nodes[number], shorten(nodes[number].label, 20, "..."), *places[number]) for number in places]
    width = max((x for x, _ in places.values()), default=0) + BOX[0] + 1
    height = max((y for _, y in places.values()), default=0) + BOX[1] + 1
    return Drawn(boxes, arrows, width, height)


def _columns(numbers: Sequence[int], before: Mapping[int, list[int]]) -> dict[int, int]:
    """Returns the column of each node: one more than those before it. A circle, which no workflow has, is cut."""
    columns = dict.fromkeys(numbers, 0)
    for _ in numbers:
        changed = False
        for number in numbers:
            wanted = max((columns[each] + 1 for each in before.get(number, ()) if each in columns), default=0)
            if columns[number] < wanted <= len(numbers):
                columns[number] = wanted
                changed = True
        if not changed:
            break
    return columns


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _arrow(one: tuple[int, int], two: tuple[int, int]) -> str:
    x, y = one[0] + BOX[0], one[1] + BOX[1] // 2
    to_x, to_y = two[0] - 6, two[1] + BOX[1] // 2
    bend = (to_x - x) // 2
    return f"M{x} {y}C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}"
