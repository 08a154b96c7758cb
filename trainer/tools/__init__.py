"""Commands that read a run or start runs; nothing imports them.

Uses every room.
"""
