"""Everything that watches a run: lock, stop requests, watchdog, reports.

Uses config and core.
"""
