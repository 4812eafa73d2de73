"""Timing of steps: warm-up, rounds, device state beside them, locks."""
