"""The operations that the command line and any other front end offer: on tasks, queues, workers and the database.

Each takes the ``database`` of an app and plain values, returns records, and raises the errors of :mod:`fbtasks.errors`.
None of them prints or asks.
"""
