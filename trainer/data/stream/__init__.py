"""Segments of a topic of Kafka: their manifests, and the records of their offsets as Arrow columns."""
