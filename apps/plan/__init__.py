"""Plans for clusters that need not be there: what fits, how long a step takes, why a table is where it is."""
