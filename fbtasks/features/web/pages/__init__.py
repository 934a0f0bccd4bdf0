"""The pages of the dashboard: each is a function of a request and its context."""
