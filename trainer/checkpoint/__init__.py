"""Checkpoints: storing, staging, restoring, retention.

Uses metrics, optim, models, config and core.
"""
