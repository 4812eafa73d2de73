"""Commands of `pytest-accel`, one file a command, its arguments beside it."""
