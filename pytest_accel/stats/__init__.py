"""Pure values and decisions: no pytest, no torch, no files, no clock."""
