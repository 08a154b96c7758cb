"""Lock, stop requests, watchdog, reports, profiles and histograms of a run.

Uses checkpoint (names and shards of weights), plan, config and core.
"""
