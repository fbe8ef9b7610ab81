"""SABAL (Shen et al. 2022)."""
