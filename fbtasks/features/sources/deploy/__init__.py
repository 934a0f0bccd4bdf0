"""How sources are deployed: what the database has is compared with the code, and brought in line."""
