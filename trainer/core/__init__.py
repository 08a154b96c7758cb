"""Foundations of all other rooms: errors, storage, ranks, configuration sections. Knows nothing of recommendation.

Uses no other room.
"""
