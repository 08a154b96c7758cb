"""Preflight, lock, stop requests, watchdog and reports of a run.

Uses config and core.
"""
