"""Sharding plans: hardware, planner, plan files, sharders, communication. Uses config, core, data, models and optim."""
