"""The scheduler `slurm`: each job as one Slurm batch job.

May use: the modules of schedulers/ itself, no other room.
"""
