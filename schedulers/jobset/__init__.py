"""The scheduler `jobset`: jobs as JobSets on a Kubernetes cluster."""
