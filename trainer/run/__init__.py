"""Lock, stop requests, watchdog and reports of a run.

Uses plan, config and core.
"""
