"""Benchmarks, which make the measured tables of the documentation; not part of the wheel."""
