"""Deploys sources: compares the database with the code, and brings it in line."""
