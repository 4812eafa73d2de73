"""What hardware there is: the catalogue, and detection of this machine."""
