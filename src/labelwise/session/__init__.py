"""Session: ask which rows to label, tell the answers."""
