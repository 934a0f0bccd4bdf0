"""Waiting for the database's events, with polling to back them up."""
