"""Migrations as people see them who must agree to them: as a script of statements, and taken back."""
