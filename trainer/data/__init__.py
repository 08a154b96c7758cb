"""Files and rows of a data set: listing files, reading their formats, selecting rows, and the order of an epoch.

Uses config, rules and core.
"""
