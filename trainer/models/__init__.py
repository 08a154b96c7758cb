"""Models, losses and embedding tables; only losses across a global batch know about ranks.

Uses data, config and core.
"""
