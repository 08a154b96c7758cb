"""The search for a sharding plan: options of every table, their costs, a proven bound, placement and its improvement.

Arrays over options only, no object for each shard: a thousand tables on a thousand ranks take seconds.
"""
