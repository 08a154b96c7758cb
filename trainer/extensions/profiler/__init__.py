"""The profiler: `profiler.py` records steps, `step_split.py` finds where their time goes."""
