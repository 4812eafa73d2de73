"""The state of this machine for benchmarking: what may spoil a measurement, found before it is taken."""
