"""Workflows: chains, groups, chords, replacing a task, and the results that steps are given."""
