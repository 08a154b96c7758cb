"""A sharding planner: turns embedding tables and a topology into a plan, with a bound, memory and time.

`plan.Problem` holds the tables, the topology and the dense part of a model; `plan.plan` returns the plan. The search
works on arrays over options, not on one object per shard: a thousand tables on a thousand ranks take seconds.
The package needs only NumPy.
"""
