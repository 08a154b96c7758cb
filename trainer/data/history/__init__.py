"""Histories: lists of a user's last events before each sample, gathered from a sorted log while samples are read."""
