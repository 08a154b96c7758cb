"""Cuts a topic of Kafka into segments of offsets."""
