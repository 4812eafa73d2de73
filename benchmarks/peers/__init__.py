"""Are our steps faster than what people run otherwise? `python -m benchmarks.peers`, and docs/peers.md."""
