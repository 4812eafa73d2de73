"""Data sets on disk, synthetic data, the order of samples, and their way to the device."""
