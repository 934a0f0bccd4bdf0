"""Periodic tasks."""
