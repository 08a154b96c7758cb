"""Imports what trainers and `torchx` do, in the process that all of them are forked from."""

import torch
from remembered import remembered_parts, remembered_plans

from trainer.commands import COMMANDS, import_quickly
from trainer.config.root import load_config
from trainer.core.console import quiet_libraries
from trainer.plan import dense_part, make_plan

quiet_libraries()
for module in (
    *(place.partition(":")[0] for place, _, _ in COMMANDS.values()),
    *(f"components.{name}" for name in ("cli.run", "cli.jobs", "data", "dlrm", "tools")),
    "torchx_recsys.apps.baselines.learned",  # imported late, as scikit-learn takes .7 processor seconds
    "torch.distributed.run",
    "torchx.cli.main",
):
    import_quickly(module)

# Traces a step without values, as each training does before it plans: torch sets half of that up at the first trace. A
# torch built for CUDA starts threads for it, without which a fork computes no gradient.
if not torch.backends.cuda.is_built():
    dense_part.dense_part(load_config("movielens"), 1)
dense_part._measure = remembered_parts(dense_part._measure)
make_plan.find_plan = remembered_plans(make_plan.find_plan)
