"""Predictions of a trained model for every row of a data set."""
