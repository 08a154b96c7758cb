"""Which files and rows: data sets, readers of their formats, selection, the order of an epoch.

Uses config, rules and core.
"""
