"""Training: setup, the loop, one step, evaluation, resume, fine-tuning.

Uses all rooms below it but pages.
"""
