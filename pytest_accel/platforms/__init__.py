"""Hardware platforms: catalogue, detection, environment, NUMA topology."""
