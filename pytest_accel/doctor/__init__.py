"""Checks of this machine before benchmarks run: one file a topic."""
