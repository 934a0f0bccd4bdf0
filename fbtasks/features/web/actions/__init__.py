"""What operators do with the dashboard."""
