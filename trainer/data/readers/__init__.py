"""Readers of file formats: Parquet, Arrow IPC, CSV and the user's own.

Uses config and core.
"""
