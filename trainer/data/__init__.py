"""From files to batches: data sets, readers, the order of an epoch, decoding.

Uses config and core.
"""
