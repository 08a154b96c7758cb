"""Models, losses and embedding tables; none knows about ranks.

Uses data, config and core.
"""
