"""Models, built from configuration; none knows about ranks."""
