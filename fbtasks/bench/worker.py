"""A worker of the benchmark: ``python -m fbtasks.bench.worker worker ...``.

It is an ordinary worker that ends with the benchmark, and where the environment names a file, says at its end what it
asked of the database.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Final

from fbtasks.store.bench import Observer
from fbtasks.worker.child.lifeline import die_with_parent

OBSERVE_VARIABLE: Final = "FBTASKS_BENCH_OBSERVE"
PARENT_VARIABLE: Final = "FBTASKS_BENCH_PARENT"


def main() -> None:
    """Runs the command line of fbtasks."""
    die_with_parent(int(os.environ.pop(PARENT_VARIABLE)))
    file = os.environ.pop(OBSERVE_VARIABLE, None)  # its children are not observed
    observer = None
    if file:
        observer = Observer(Path(file))
        observer.install()
    sys.argv[0] = "fbtasks"
    try:
        runpy.run_module("fbtasks", run_name="__main__")
    finally:
        if observer is not None:
            seen = {"statements": observer.count, "transactions": observer.transactions, "queries": observer.queries}
            Path(f"{file}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
