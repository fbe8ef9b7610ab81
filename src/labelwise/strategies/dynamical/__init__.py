"""dynamicAL: training dynamics."""
