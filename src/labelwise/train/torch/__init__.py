"""Training of torch modules."""
