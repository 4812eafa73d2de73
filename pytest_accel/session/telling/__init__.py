"""What a session says at its end: its table, and its results as a value."""
