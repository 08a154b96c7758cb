"""Baselines beside a model: simple predictors on the same rows, by the same metrics."""
