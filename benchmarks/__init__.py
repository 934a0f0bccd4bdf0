"""The benchmark: what the database can do at most, what fbtasks makes of it, and other systems beside it.

``make bench`` runs it (``python -m benchmarks.run``); docs/how-to/benchmark.md says how each number is taken.
"""
