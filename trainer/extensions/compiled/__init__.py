"""The compiled dense part: `train.compile`.

Begin with `compile.py`, which compiles from the first step on, and `when_it_pays.py`, which decides during a run.
`one_graph.py` is the dense part with its loss and gradients as one graph, and `graph_file.py` keeps the machine code of
such a graph for later starts.
"""

DECIDED = "compile.json"
"""The file of a run with what `when_it_pays.py` has decided."""
