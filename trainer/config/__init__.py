"""Configuration sections as plain data, importable without torch.

Uses rules and core.
"""
