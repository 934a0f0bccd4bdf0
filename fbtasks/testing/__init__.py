"""Helpers for the tests of applications: eager mode, draining a queue, and a pytest fixture (see plugin.py)."""

from fbtasks.testing.helpers import drain, eager

__all__ = ["drain", "eager"]
