"""Checkpoints: storing, staging, restoring, retention.

Uses optim, models, data, config and core.
"""
