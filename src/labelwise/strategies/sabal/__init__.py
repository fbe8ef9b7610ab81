"""SABAL: sparse approximation, by greedy selection or iterative hard thresholding."""
