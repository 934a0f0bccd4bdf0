"""All that runs in a child process of a worker. Its other side is in ``executors``; what both know is beside them."""
