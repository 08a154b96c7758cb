"""Foundations of every other room; nothing here knows about recommendation.

Uses no other room.
"""
