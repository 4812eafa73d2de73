"""Power and energy sources: one file each, opened by `find.open_sources`."""
