"""The scheduler `kubernetes`: TorchX's own, for Volcano, with code that needs no image build."""
