"""The page with the results, and the targets that need the peers."""

from bench import transports
from fbtasks.bench.targets import LIGHT, PROCESSES, at_least, at_most, best, own_targets, ratio
from fbtasks.cli.render import amount, verdict

CELERY = tuple(f"peer/celery-redis/{pool}/{number}/drain" for pool in ("prefork", "threads") for number in (2, 10))
PREFORK = CELERY[:2]
PEER_COLUMNS = (
    "system", "setting", "drain, tasks/s", "samples", "fbtasks / it", "enqueue, tasks/s", "latency p50, p99, ms",
    "versions",
)  # fmt: skip


def all_targets(figures, *, embedded):
    """The targets table: the comparisons with peers, then those that need none."""
    get = figures.get
    light, processes = best(figures, LIGHT), best(figures, PROCESSES)
    celery_p50 = min(
        (value for pool in ("prefork", "threads")
         if (value := get(f"peer/celery-redis/{pool}/2/latency/p50")) is not None),
        default=None,
    )  # fmt: skip
    return [
        at_least("drain, the faster of threads and asyncio, results ignored", 10, ratio(light, figures.best(CELERY)),
                 "x Celery + Redis at its best"),
        at_least("drain, the faster of threads and asyncio, results ignored", 1.5,
                 ratio(light, get("peer/pgqueuer/asyncio/10/drain")), "x PgQueuer at batch 10"),
        at_least("drain, processes, results ignored", 4, ratio(processes, figures.best(PREFORK)),
                 "x Celery + Redis prefork at its best"),
        at_most("latency, idle worker, 100/s, p50", 2.5, ratio(get("latency/100/p50"), celery_p50),
                "x Celery + Redis at its best"),
        at_least("kombu, publish to acknowledgement", 5,
                 ratio(get("transport/firebird/publish to ack"), get("transport/sqlite/publish to ack")),
                 "x SQLAlchemy on SQLite"),
        *own_targets(figures, embedded=embedded),
    ]  # fmt: skip


def table(head, rows, align):
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(align)}|"]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def spread(figure):
    """The least and the most of its samples, when there are several."""
    samples = figure["samples"]
    return "" if len(samples) < 2 else f"{amount(min(samples))} - {amount(max(samples))}"


def page(found):
    figures = {figure["key"]: figure for figure in found["figures"]}
    targets = [
        (t["what"], t["wanted"], f"{amount(t['found'])} {t['unit']}".strip() if t["found"] is not None else "",
         f"**{verdict(t['reached'])}**" if t["reached"] is False else verdict(t["reached"]))
        for t in found["targets"]
    ]  # fmt: skip
    ours = [f for key, f in figures.items() if not key.startswith(("peer/", "transport/"))]
    text = [
        "# Results of the benchmark\n",
        "Written by `make bench`; [how each number is taken](../how-to/benchmark.md). Numbers of one run on one "
        "machine: the ratios between them mean something, the absolute ones vary with the machine and with what else "
        "it does.\n",
    ]
    if found["quick"]:
        text.append("**A quick run, which only shows that the benchmark works.**\n")
    rounds = found["rounds"]
    text += [
        table(("", ""), found["machine"].items(), ("---", "---")),
        f"\nEvery figure is the median of {rounds} round{'s' if rounds > 1 else ''}, with the systems in turns; beside "
        "it stand the least and the most. Latency of fbtasks, idle cost, starts, several workers and large tables are "
        "measured in the last round alone.\n",
        "![Drained tasks a second](results.svg)\n",
        "## Targets\n",
        table(("what", "wanted", "found", "reached"), targets, ("---", "---", "---", "---")),
        "\n[What stands in the way](../how-to/benchmark.md#what-stands-in-the-way) of those that were missed.",
        "\n## fbtasks and the ceiling\n",
        table(("figure", "median", "unit", "samples"),
              [(f["label"], amount(f["value"]), f["unit"], spread(f)) for f in ours], ("---", "---:", "---", "---")),
        "\n## Peers\n",
        table(PEER_COLUMNS, list(peer_rows(found, figures)),
              ("---", "---", "---:", "---", "---:", "---:", "---", "---")),
        "\n*fbtasks / it* compares with the fastest drain of fbtasks with results ignored: of the process pool for "
        "Celery's prefork, else of threads and asyncio.",
    ]  # fmt: skip
    if any(key.startswith("transport/") for key in figures):
        text += [
            "\n## Celery/kombu transports\n",
            table(("messages/s", *(transport.title for transport in transports.ALL)), transport_rows(figures),
                  ("---", *("---:" for _ in transports.ALL))),
        ]  # fmt: skip
    if found["notes"]:
        text += ["\n## Not measured\n", *(f"- {' '.join(note.split())}" for note in found["notes"])]
    return "\n".join(text) + "\n"


def transport_rows(figures):
    for what in transports.MEASURES:
        found = [figures.get(f"{transport.key}/{what}") for transport in transports.ALL]
        yield (what, *("" if figure is None else amount(figure["value"]) for figure in found))


def peer_rows(found, figures):
    def value(key):
        return figures[key]["value"] if key in figures else None

    def fastest(prefixes):
        return max((v for prefix in prefixes if (v := value(f"{prefix}/ignored")) is not None), default=None)

    for key, peer in found["peers"].items():
        drained = figures.get(f"peer/{key}/drain")
        if drained is None:
            yield (peer["title"], peer["setting"], "not measured", "", "", "", "", peer["versions"])
            continue
        ours = fastest(PROCESSES if "prefork" in key else LIGHT)
        p50, p99 = (value(f"peer/{key}/latency/{name}") for name in ("p50", "p99"))
        latency = "" if p50 is None else f"{amount(p50)}, {amount(p99)}"
        yield (
            peer["title"], peer["setting"], amount(drained["value"]), spread(drained),
            amount(ratio(ours, drained["value"])), amount(value(f"peer/{key}/single")), latency, peer["versions"],
        )  # fmt: skip
