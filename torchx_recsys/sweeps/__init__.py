"""Sweeps: trials of a configuration with other values, as jobs, found by Optuna; the command `torchx sweep`."""
