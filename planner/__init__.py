"""A planner of sharding: from embedding tables and a topology of ranks to a plan, with a bound, memory and time.

`plan.Problem` has the tables, the topology and the dense part of a model; `planned.plan` returns the plan. The search
uses arrays over options, no object for each shard: a thousand tables on a thousand ranks take seconds. NumPy is all
that this package needs.
"""
