"""TorchX components, which define jobs, and TorchX's commands as this project extends them."""
