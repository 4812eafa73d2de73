"""Data sets on disk, and the order in which their samples are taken.

Importing this package does not import torch: `sets` and `errors` are plain; the other modules are for benchmarks.
"""
