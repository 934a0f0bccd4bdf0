"""What operators do with tasks, queues and workers, as functions that return records."""
