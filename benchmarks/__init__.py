"""Studies on real hardware: what this project says of itself, with the scripts that anybody can repeat it with."""
