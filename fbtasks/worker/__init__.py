"""The worker: claims due tasks, has executors run them, records what became of them."""
