"""What definitions in code come to in the database's tables: what is wanted, what is found, and what is to be done."""
