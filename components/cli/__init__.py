"""TorchX's commands, with errors in one line and local jobs by default."""
