"""Background tasks for applications whose data lives in Firebird: the queue is a table of your database."""
