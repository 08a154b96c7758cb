"""The scheduler `slurm`: jobs as Slurm batch jobs."""
