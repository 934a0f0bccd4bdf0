"""Events of the database, and what waits for results."""
