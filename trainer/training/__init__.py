"""Training: setup, the loop, a single step, evaluation, resume and fine-tuning.

Uses all rooms below it but pages.
"""
