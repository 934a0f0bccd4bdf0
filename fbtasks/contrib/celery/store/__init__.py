"""Messages, results and chords in their tables."""
