"""The scheduler `kubernetes`: TorchX's own, for Volcano, with its faults mended and its states explained."""
