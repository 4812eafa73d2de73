"""Sessions of pytest that a command conducts: in other environments, one after the other or side by side."""
