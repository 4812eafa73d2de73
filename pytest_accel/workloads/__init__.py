"""Models, data, precision and optimizers, built into one step."""
