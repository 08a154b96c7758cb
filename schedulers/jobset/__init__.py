"""The scheduler `jobset`: each job as a JobSet on a Kubernetes cluster.

May use: the modules of schedulers/ itself, no other room.
"""
