"""Checks data sets before jobs are spent on them."""
