"""TorchX components: what can be submitted."""
