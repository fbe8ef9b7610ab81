"""Inner kernels of nearest-distance picks: the picks inside one list of candidates."""
