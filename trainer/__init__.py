"""The trainer: plans, shards, trains, evaluates and checkpoints a TorchRec model."""
