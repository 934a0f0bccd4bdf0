"""Where work comes from in a user's database: descriptions of tables, and the triggers that record their changes."""
