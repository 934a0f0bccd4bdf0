"""Who lives: registration, heartbeat, neighbours and rescue, for workers and for consumers of messages alike."""
