"""Extensions: features that watch, precede, drive or wrap a run, each in a file or a folder of its own.

Uses all rooms below it; no other room imports it. `EXTENSIONS` in trainer/training/extensions.py names them.
"""
