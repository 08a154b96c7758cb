"""Pipelines: jobs that follow each other, described in one file; the command `torchx pipeline`."""
