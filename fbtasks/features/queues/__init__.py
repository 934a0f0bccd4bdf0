"""Bounded queues, quiet hours, ageing, and the limits of queues: what the code says of a queue."""
