"""What every room needs, and what knows nothing of recommendation.

Uses no other room.
"""
