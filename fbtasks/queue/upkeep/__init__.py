"""Maintenance that any worker does for all, once a minute."""
