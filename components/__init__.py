"""TorchX components, from which jobs are made, and TorchX's commands as this project extends them."""
