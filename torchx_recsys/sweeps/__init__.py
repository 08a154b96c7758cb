"""Sweeps: jobs that try values of a configuration, chosen by Optuna; the command `torchx sweep`."""
