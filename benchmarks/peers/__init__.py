"""Compares this project with alternatives: the same rows, model and batch, each in its own environment."""
