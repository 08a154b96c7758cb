"""Lock, stop requests, watchdog, reports and profiles of a run.

Uses checkpoint (names and shards of weights), plan, config and core.
"""
