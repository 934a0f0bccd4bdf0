"""The transport of kombu: its public names are in ``fbtasks.kombu``."""
