"""What any worker does for all, once a minute."""
