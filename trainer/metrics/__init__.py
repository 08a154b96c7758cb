"""Evaluation metrics, found by name.

Uses models, config, rules and core.
"""
