"""The scheduler `local_cwd`: jobs as processes of this machine."""
