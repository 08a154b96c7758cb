"""Evaluation metrics, found by name.

Uses config and core.
"""
