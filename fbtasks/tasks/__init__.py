"""What an application declares and calls: tasks, their options, one call, and what travels with it. Knows no database."""
