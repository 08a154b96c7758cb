"""Baselines beside a run: `kept.py` reads the file of `data.baselines`, `watcher.py` shows it beside the run."""
