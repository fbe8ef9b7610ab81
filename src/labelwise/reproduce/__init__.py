"""Tables and figures of the papers: our numbers next to the paper's, and whether its claims hold.

Each paper has a folder with its protocols; a page and its records are written from the runs alone.
"""
