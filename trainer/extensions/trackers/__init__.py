"""Experiment trackers, `report.trackers`: what the files of a run say is sent to MLflow, by a process of its own.

Begin with `sending.py`: it sends what a tracker does not have yet, while a run trains and after it. `records.py` reads
the run's files, each service has a file, and `watcher.py` starts and wakes the processes.
"""
