"""A run from the outside: its lock, stop requests, watchdog, step clock and reports.

Uses plan, config and core.
"""
