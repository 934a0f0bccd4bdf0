"""All that runs in a child process of a worker. Its other side is in the modules beside this package."""
