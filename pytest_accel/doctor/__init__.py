"""Checks of this machine and of an image before benchmarks run: one file a topic."""
