"""dynamicAL: rows that speed up training most."""
