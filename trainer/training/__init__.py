"""Training: setup, the loop, a single step, evaluation, resume and fine-tuning.

Uses every other room.
"""
