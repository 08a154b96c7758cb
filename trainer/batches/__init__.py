"""From rows to batches: decoding, rows in memory, shuffle windows, negatives from the catalogue, the loader.

Uses data, config, rules and core.
"""
