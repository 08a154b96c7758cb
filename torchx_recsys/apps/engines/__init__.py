"""Computes the parts of a data job: in threads of this process, on a Spark cluster, or by DuckDB."""
