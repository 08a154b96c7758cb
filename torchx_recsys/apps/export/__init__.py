"""Exports a checkpoint as a directory that serves: torch alone loads it, and it takes raw columns."""
