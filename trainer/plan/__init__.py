"""Sharding plans: hardware, planner, plan files, sharders, communication.

Uses optim, models, data, config and core.
"""
