"""Pipelines: jobs after jobs from one file, the record of submissions, and the command `torchx pipeline`."""
