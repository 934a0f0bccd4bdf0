"""Progress: what a task says of itself while it runs."""
