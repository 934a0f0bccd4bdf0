"""Where tasks run: in child processes (one task each, threads, or an event loop), or in the worker itself."""
