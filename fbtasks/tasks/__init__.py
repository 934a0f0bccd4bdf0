"""Tasks, their options, calls and serialization. Knows no database."""
