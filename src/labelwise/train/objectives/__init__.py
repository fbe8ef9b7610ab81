"""Objectives: what training minimises, and the losses they are made of."""
