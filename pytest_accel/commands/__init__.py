"""What `pytest-accel` can be told to do: one file a command, its arguments beside it."""
