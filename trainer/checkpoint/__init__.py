"""Checkpoints: staging, saving, verifying, restoring and deleting them.

Uses metrics, optim, models, config and core.
"""
