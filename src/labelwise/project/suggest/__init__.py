"""Suggestions for people: by class names, by a model at an address, or by the model of the project. Measured first."""
