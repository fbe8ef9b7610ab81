"""What a project was made for: predictions with probabilities, the rows that need no person, and the model itself."""
