"""What an application declares and calls: tasks, their options, a call, what travels with it. Knows no database."""
