"""Comparison of our steps with those of other libraries: `python -m benchmarks.comparison`."""
