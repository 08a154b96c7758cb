"""Measures a kind of host, once, for plans to count with."""
