"""Commands of `pytest-accel`, one file a topic, the arguments beside each."""
