"""Writes a trained model's predictions for every row of a data set."""
