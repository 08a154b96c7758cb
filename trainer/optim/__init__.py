"""Optimizers and learning-rate schedules.

Uses models, config and core.
"""
