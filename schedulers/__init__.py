"""TorchX plugins that run jobs, and the command `torchx doctor`."""
