"""The benchmark beside its peers: ``python -m bench.run --venv .venv-bench --into docs/benchmarks``.

Measures fbtasks and every peer in turns, as often as asked, and writes results.json, results.md and results.svg.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import transports
from bench.peers import Peers, all_peers
from bench.report import all_targets, page
from bench.servers import Unavailable
from fbtasks import FBTasks
from fbtasks.bench import measures, run
from fbtasks.bench.figures import Figures
from fbtasks.bench.place import Place
from fbtasks.cli import render
from fbtasks.url import DatabaseURL

QUICK = 0.05
"""The share of a peer's backlog that a quick run measures."""


def options():
    parser = argparse.ArgumentParser(prog="bench", description="fbtasks, what Firebird can do, and its peers.")
    parser.add_argument("--venv", required=True, help="the virtual environment with the peers")
    parser.add_argument("--into", default="docs/benchmarks", help="the folder to write to")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured")
    parser.add_argument("--quick", action="store_true", help="a small run, to see that it works")
    parser.add_argument("--only", default="", help="only parts and peers whose names begin so, separated by commas")
    parser.add_argument("--url", help="a database on a server, for fbtasks; default: an embedded one, made for it")
    return parser.parse_args()


def wanted(names, key):
    return not names or any(key.startswith(name) for name in names)


def measure_peer(peers, peer, share, figures, progress):
    """Measures a peer once. One that cannot be had is noted."""
    if peer.key in peers.missing:
        return
    progress(peer.key)
    try:
        peers.ready(peer)
        figures.add(peers.measure(peer, share))
    except Unavailable as error:
        peers.missing[peer.key] = str(error)
        figures.note(f"{peer.label}: not measured: {error}")


def measure_transport(peers, transport, url, share, figures, progress):
    """Measures a transport of kombu once. One that cannot be had is noted."""
    progress(transport.key)
    try:
        if transport is not transports.OURS:
            peers.ready(transport)
        figures.add(transports.measure(peers, transport, url, share))
    except Unavailable as error:
        figures.note(f"{transport.label}: not measured: {error}")


def in_turns(some, others):
    """All of both, each evenly among the other, so that a slow minute of the machine falls on both."""
    places = [((place + 0.5) / len(group), item) for group in (some, others) for place, item in enumerate(group)]
    return [item for _, item in sorted(places, key=lambda pair: pair[0])]


def measure(chosen, folder, progress):
    names = [name for name in chosen.only.split(",") if name]
    scale = measures.QUICK if chosen.quick else measures.FULL
    parts = {
        name: part
        for name, part in run.chosen_parts([], scale, large=True).items()
        if wanted(names, name)
    }  # fmt: skip
    peers_wanted = [peer for peer in all_peers() if wanted(names, peer.key)]
    transports_wanted = [transport for transport in transports.ALL if wanted(names, transport.key)]
    figures = Figures()
    url = chosen.url or f"firebird://{folder}/bench.fdb"
    if not chosen.url:
        FBTasks("bench", url).migrate()
    peers = Peers(Path(chosen.venv).absolute(), folder / "peers")
    peers.folder.mkdir()
    peers.folder.chmod(0o711)  # a server may run as another user, who passes through
    rounds = 1 if chosen.quick else chosen.rounds
    try:
        with Place(DatabaseURL.parse(url)) as place:
            for number in range(rounds):

                def say(what, number=number):
                    progress(f"round {number + 1} of {rounds}: {what}")

                last = number == rounds - 1
                for item in in_turns([name for name in parts if name not in measures.ONCE], peers_wanted):
                    if isinstance(item, str):
                        run.run_round(place, {item: parts[item]}, scale, figures, say, last=last)
                    else:
                        measure_peer(peers, item, QUICK if chosen.quick else 1.0, figures, say)
                for item in transports_wanted:
                    measure_transport(peers, item, url, QUICK if chosen.quick else 1.0, figures, say)
                late = {name: part for name, part in parts.items() if name in measures.ONCE}
                run.run_round(place, late, scale, figures, say, last=last)
            found = run.results(place, figures, all_targets(figures, embedded=place.url.embedded))
        found["rounds"] = rounds
        found["quick"] = chosen.quick
        found["peers"] = {
            peer.key: {"title": peer.title, "setting": peer.setting, "versions": peers.version_of(peer),
                       "missing": peers.missing.get(peer.key)}
            for peer in peers_wanted
        }  # fmt: skip
    finally:
        peers.close()
    return found


def write(found, into, venv):
    into.mkdir(parents=True, exist_ok=True)
    (into / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    (into / "results.md").write_text(page(found))
    plot = [Path(venv) / "bin" / "python", "-m", "bench.plot", into / "results.json", into / "results.svg"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    if subprocess.run(plot, env=env).returncode:
        print("The plot was not drawn.", file=sys.stderr)


def main():
    chosen = options()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    begun = time.monotonic()

    def progress(what):
        print(f"{time.monotonic() - begun:6.0f} s  {what}", file=sys.stderr, flush=True)

    folder = Path(tempfile.mkdtemp(prefix="fbtasks-bench-"))
    folder.chmod(0o711)
    try:
        found = measure(chosen, folder, progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    write(found, Path(chosen.into), chosen.venv)
    render.benchmark(found)
    print(f"\nWritten to {chosen.into}.")


if __name__ == "__main__":
    main()
