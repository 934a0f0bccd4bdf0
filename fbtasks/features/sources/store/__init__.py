"""The statements of sources: triggers, polls, and what makes them."""
