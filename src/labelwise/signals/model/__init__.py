"""Signals of a model: class probabilities, embeddings, and its last linear layer."""
