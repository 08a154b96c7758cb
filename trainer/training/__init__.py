"""Training: setup, the loop, one step, evaluation, resume, fine-tuning.

Uses every other room.
"""
