"""Commands that make data sets.

Uses config and core.
"""
