"""The programs around training, one folder each: what makes, checks and uses data and runs."""
