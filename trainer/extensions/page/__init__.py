"""The page of a run: drawn from its directory by `run_page.py`, at moments that `watcher.py` knows."""
