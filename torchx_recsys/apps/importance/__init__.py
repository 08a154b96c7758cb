"""Which features matter: permutation importance of a checkpoint."""
