"""Draws the drains of one run side by side: ``python -m benchmarks.plot results.json results.svg``."""

from __future__ import annotations

import json
import sys
from typing import Any

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "fbtasks"  # the same figures give the same file
import matplotlib.pyplot as plt  # noqa: E402

OURS, THEIRS = "#c8502e", "#3a6ea5"


def bars(found: dict[str, Any]) -> list[tuple[str, str, list[float]]]:
    """Label, colour and rates of each bar from below: for each pair theirs, then ours, with the ratio."""
    figures = found["figures"]
    rows = []
    for pair in reversed(found["pairs"]):
        ours, theirs = figures.get(f"{pair['ours']}/drain"), figures.get(f"{pair['theirs']}/drain")
        ratio = figures.get(f"{pair['theirs']}/drain/ratio")
        if ours and theirs and ratio and pair["theirs"] in found["versions"]:
            label = f"{ours['label'].partition(':')[0]} ({ratio['median']:.2g} x)"
            for text, colour, figure in ((theirs["label"].partition(":")[0], THEIRS, theirs), (label, OURS, ours)):
                rows.append((text, colour, [reading["value"] for reading in figure["readings"]]))
    return rows


def main(source: str, target: str) -> None:
    """Reads the results and draws them."""
    with open(source) as file:
        found = json.load(file)
    rows = bars(found)
    figure, axes = plt.subplots(figsize=(10, 1.2 + 0.3 * len(rows)))
    for place, (_, colour, rates) in enumerate(rows):
        middle = sorted(rates)[len(rates) // 2]
        reach = [[middle - min(rates)], [max(rates) - middle]]
        axes.barh(place, middle, color=colour, xerr=reach, error_kw={"elinewidth": 0.8, "ecolor": "#333333"})
        axes.annotate(f"{middle:,.0f}", (middle, place), xytext=(4, -3), textcoords="offset points", fontsize=8)
    axes.set_yticks(range(len(rows)), [label for label, _, _ in rows])
    axes.set_xscale("log")
    axes.set_xlabel("no-op tasks run in a second (logarithmic), median and range of the rounds")
    machine = found["machine"]
    axes.set_title(
        f"{machine['date']}, {machine['processor']}, Firebird {machine['Firebird'].split(',')[0]}", fontsize=9
    )
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
