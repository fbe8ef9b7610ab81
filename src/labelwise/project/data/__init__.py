"""The data of a project: rows, encoders, features."""
