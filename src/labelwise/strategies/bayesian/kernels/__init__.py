"""Kernels of Frank-Wolfe: what runs next to the rows."""
