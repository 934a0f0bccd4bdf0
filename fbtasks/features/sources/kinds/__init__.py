"""The three kinds of sources: changes of tables, events, and rows of polled tables."""
