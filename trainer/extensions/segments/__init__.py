"""Runs over segments of data, such as days: each is evaluated on, then trained on once, in the order of names."""
