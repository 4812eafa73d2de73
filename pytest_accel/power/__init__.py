"""Power and energy sources: one file each, found by `source.open_sources`."""
