"""Cuts a log of events into train, validation and test, with DuckDB."""
