"""This project beside what a user would pick instead: the same rows, model and batch, each in its own environment."""
