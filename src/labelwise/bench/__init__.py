"""Bench: the data sets, networks and protocols of the papers, and the runner that resumes."""
