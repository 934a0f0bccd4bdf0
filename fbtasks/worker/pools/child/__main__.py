"""Starts a child process: ``python -m fbtasks.worker.pools.child PARENT PIPE TASKS STATUS MODE APP NUMBER SLOTS LOG``.

What fbtasks itself imports lasts as long as the process. So the garbage collector does not look through it: not while
it is imported, and never again, which saves a sixth of what it takes to start and to end a child.
"""

import gc
import sys
from importlib import import_module

if __name__ == "__main__":
    gc.disable()
    process = import_module("fbtasks.worker.pools.child.process")
    gc.freeze()
    gc.enable()
    sys.exit(process.main(sys.argv[1:]))
