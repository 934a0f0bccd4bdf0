"""The code of a child process. The worker's side is in the modules beside this package."""
