"""Data: Parquet files to batches, and the sources that make data sets."""
