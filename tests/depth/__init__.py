"""What things cost when much waits: filled to one depth and counted, filled to another and counted again."""
