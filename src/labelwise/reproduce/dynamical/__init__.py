"""dynamicAL (Wang et al. 2022)."""
