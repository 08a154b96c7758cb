"""Experiment trackers, `report.trackers`: what the files of a run say goes to MLflow or Weights & Biases.

Begin with `sending.py`: it sends what a tracker does not have yet, while a run trains and after it. `records.py` reads
the run's files, each service has a file, and `watcher.py` starts and wakes the processes.
"""
