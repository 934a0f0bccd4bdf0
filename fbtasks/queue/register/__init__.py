"""The register of processes: who is alive, and what becomes of what the dead held."""
