"""The measurements of `python -m trainer bench`."""
