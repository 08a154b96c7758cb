"""Configuration sections as plain data, importable without torch.

Uses core.
"""
