"""The method of an article on background processing with Firebird, which changes of a table are measured beside.

Triggers write a row into a log for each subscriber of a change. One worker handles what waits in the log in order; or
five processes take one row after the other at random. The author measured 356 and 149 events a second.
"""
