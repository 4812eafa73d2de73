"""Timing a step honestly: settle, then rounds, the device synchronised at both ends."""
