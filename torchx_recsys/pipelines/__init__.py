"""Jobs after jobs from one file: what the file says, what was submitted, and the command `torchx pipeline`."""
