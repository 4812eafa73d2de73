"""Power and energy sources: one file each, found by `find.open_sources`."""
