"""Makes the driver and the engine safe to use; knows nothing of the queue."""
