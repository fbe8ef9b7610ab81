"""Verify: every strategy against slow references from the papers, its invariances and the theorems, where it runs."""
