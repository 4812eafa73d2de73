"""Ranks: their start, connections, deadlines, affinity and process group."""
