"""The pools of a worker: both sides of the pipe to a child process, and the pool of threads."""
