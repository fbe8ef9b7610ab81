"""Bench: the data sets, networks and protocols of the papers, and the runner that resumes.

A suite is a YAML file: data sets x models x strategies x seeds. Every round is on disk before the next one starts.
"""
