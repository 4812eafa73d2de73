"""Images on disk, the order of samples, and their way to the device."""
