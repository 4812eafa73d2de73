"""Where an item runs: its platform, its seat, the CPUs it is bound to, and the command line of its ranks."""
