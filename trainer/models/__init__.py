"""Models, losses and embedding tables; only losses and weights across a global batch know about ranks.

Uses batches, data, config, rules and core.
"""
