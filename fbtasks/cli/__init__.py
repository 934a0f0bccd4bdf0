"""The command line: ``fbtasks``."""

from fbtasks.cli.main import main

__all__ = ["main"]
