"""The life of a task in the database: enqueueing, claims, outcomes, results, and what operators do with tasks."""
