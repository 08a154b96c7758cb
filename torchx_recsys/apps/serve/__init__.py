"""Serves an exported model over HTTP, to look at it: JSON in and out, requests in batches."""
