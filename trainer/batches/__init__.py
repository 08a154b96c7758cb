"""From rows to batches: rows in memory, decoding, shuffle windows, the catalogue, the loader.

Uses data, config, rules and core.
"""
