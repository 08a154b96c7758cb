"""Evaluation metrics, found by name.

Uses models, config and core.
"""
