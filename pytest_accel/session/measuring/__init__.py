"""Measuring one item: the fixture's work, its devices to itself, what is observed beside it, progress meanwhile."""
