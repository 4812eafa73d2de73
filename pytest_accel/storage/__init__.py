"""Baselines on disk: parsed, validated, written atomically."""
