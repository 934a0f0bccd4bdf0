"""The operations of operators on tasks, queues and workers, as functions that return records."""
