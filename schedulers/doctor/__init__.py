"""The command `torchx doctor`: checks of this machine and of the clusters that it reaches."""
