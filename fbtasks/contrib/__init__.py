"""Interfaces of other programs, which have tables and rules of their own."""
