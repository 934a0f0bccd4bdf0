"""Sources of work in the database: changes of tables, events, and polled tables."""
