"""How good a first configuration is, on public data sets."""
