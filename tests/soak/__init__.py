"""The soak: many processes, faults at random, and an account of every task."""
