"""What the user reads: verdict lines and the table."""
