"""ALLY: Lagrangian duality."""
