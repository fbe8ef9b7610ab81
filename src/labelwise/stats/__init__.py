"""Records and statistics: numbers, no drawing."""
