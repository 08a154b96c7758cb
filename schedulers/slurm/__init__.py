"""The scheduler `slurm`: jobs as Slurm batch jobs. Uses contract, errors and log_files."""
