"""What `python -m trainer bench` measures."""
