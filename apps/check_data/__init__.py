"""Checks data sets before jobs are spent on them: reading, figures, findings, and what is written of them."""
