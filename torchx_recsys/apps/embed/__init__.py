"""Vectors of a whole catalogue, or of a table."""
