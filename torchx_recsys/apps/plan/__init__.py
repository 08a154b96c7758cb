"""Plans for clusters given by name: what fits, how long a step takes, why each table is where it is."""
