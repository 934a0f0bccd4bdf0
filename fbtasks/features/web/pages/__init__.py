"""The pages of the dashboard: each is a function of the context of a request, and returns a response."""
