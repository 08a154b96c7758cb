"""TorchX plugins: where jobs run."""
