"""Tasks: one module each with the plan of its batches, its loss and its real data."""
