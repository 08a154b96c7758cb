"""Serves an exported model over HTTP, for trying it out: JSON in and out, requests in batches."""
