"""Sharding plans: from a model to the planner and back, plan files, sharders and communication.

Uses optim, models, batches, data, config and core.
"""
