"""`pytest-accel launch --slurm`: a batch script, its job, and waiting for it."""
