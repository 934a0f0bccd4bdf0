"""The benchmark: what the database can do at most, and what fbtasks makes of it.

``fbtasks bench`` runs it; docs/how-to/benchmark.md says how each number is taken.
"""
