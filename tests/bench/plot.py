"""Draws the drains of one run: ``python -m bench.plot results.json results.svg``."""

import json
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "fbtasks"  # the same figures give the same file
import matplotlib.pyplot as plt  # noqa: E402


def bars(found):
    """The label, the value and the kind of every drain, the fastest first."""
    rows = []
    for figure in found["figures"]:
        key = figure["key"]
        if key == "ceiling/claim+delete":
            rows.append(("PSQL: claim and delete", figure, "ceiling"))
        elif key.startswith("drain/"):
            rows.append((figure["label"].replace("drain, ", "fbtasks, "), figure, "fbtasks"))
        elif key.startswith("peer/") and key.endswith("/drain"):
            rows.append((figure["label"].replace("drain, ", ""), figure, "peer"))
    return sorted(rows, key=lambda row: row[1]["value"])


def main(source, target):
    with open(source) as file:
        found = json.load(file)
    rows = bars(found)
    colours = {"ceiling": "#9a9a9a", "fbtasks": "#c8502e", "peer": "#3a6ea5"}
    figure, axes = plt.subplots(figsize=(10, 1.2 + 0.28 * len(rows)))
    values = [row[1]["value"] for row in rows]
    errors = [
        [value - min(row[1]["samples"]) for value, row in zip(values, rows, strict=True)],
        [max(row[1]["samples"]) - value for value, row in zip(values, rows, strict=True)],
    ]
    axes.barh([row[0] for row in rows], values, color=[colours[row[2]] for row in rows], xerr=errors,
              error_kw={"elinewidth": 0.8, "ecolor": "#333333"})  # fmt: skip
    for place, value in enumerate(values):
        axes.annotate(f"{value:,.0f}", (value, place), xytext=(4, -3), textcoords="offset points", fontsize=8)
    axes.set_xscale("log")
    axes.set_xlabel("no-op tasks drained a second (logarithmic), median and range of the rounds")
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
