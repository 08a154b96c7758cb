"""Readers of file formats, found by name.

Uses config and core.
"""
