"""The command `torchx-recsys`: `python -m trainer` under the product's own name."""

import runpy


def main() -> None:
    """Runs the trainer as `python -m` does; it also finds modules of the working directory, which scripts do not."""
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
