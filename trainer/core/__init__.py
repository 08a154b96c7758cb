"""Foundations of every other room, without knowledge of recommendation.

Uses no other room.
"""
