"""The scheduler `local_cwd`: jobs as processes of this machine. Uses contract, errors and log_files."""
