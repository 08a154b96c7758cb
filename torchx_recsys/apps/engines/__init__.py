"""Computes the parts of a data job: in threads of this process, or on a Spark cluster."""
