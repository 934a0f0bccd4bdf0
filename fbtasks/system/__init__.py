"""Threads, wakes, sockets and signals of a process: knows nothing of Firebird and of tasks."""
