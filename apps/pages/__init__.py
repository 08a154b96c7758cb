"""Drawings for terminals and pages."""
