"""Imports what trainers and `torchx` do, in the process that all of them are forked from."""

from trainer.commands import COMMANDS, import_quickly

for module in (
    *(place.partition(":")[0] for place, _, _ in COMMANDS.values()),
    *(f"components.{name}" for name in ("cli.run", "cli.jobs", "data", "dlrm", "tools")),
    "torch.distributed.run",
    "torchx.cli.main",
):
    import_quickly(module)
