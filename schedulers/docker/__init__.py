"""The scheduler `local_docker`: TorchX's own, which says why a job has failed."""
