"""The gate on real noise: gathers streams of fresh processes of one benchmark, and judges them by resampling."""
