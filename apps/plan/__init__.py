"""Plans for clusters given by name: what fits, how long a step takes, why a table is where it is."""
