"""One file a format: the layouts in which data sets are published, read as they are."""
