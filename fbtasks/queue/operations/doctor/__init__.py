"""``fbtasks doctor``: checks of the engine, the database, the queue and its workers."""
