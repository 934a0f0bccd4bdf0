"""Agreements between the processes that have one embedded file open."""
