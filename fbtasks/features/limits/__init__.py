"""Limits: how many tasks run at once, how often they begin, and in which order; unique tasks and batches."""
