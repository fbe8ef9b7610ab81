"""What a pool reads rows from."""
