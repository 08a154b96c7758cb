"""Evaluates a model that is no longer trained on later segments, to show the worth of training on each."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.checkpoint.choice import find_checkpoint
from trainer.checkpoint.store import Checkpoint, Checkpoints
from trainer.config.root import Config
from trainer.core.distributed import process_group
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.storage import named
from trainer.data.columns import RecordedTypes
from trainer.data.segments import data_of_segment, look_at_segment
from trainer.metrics.checks import check_metrics
from trainer.training.evaluate import Evaluator, open_catalogue, restore_evaluated

FIRST = "first"
Line = Mapping[str, Any]


def find_static(run: RunDirectory, choice: str) -> Checkpoint:
    """Returns the checkpoint of a step, or the first that is kept.

    Raises:
        InputError: There is no such checkpoint.
    """
    if choice == FIRST:
        with named("--out", run.url):
            steps = Checkpoints(run).steps()
        choice = str(steps[0]) if steps else choice
    if not choice.isdecimal():
        raise InputError(f"--static is '{choice}'; allowed: {FIRST}, or the step of a checkpoint that is kept")
    return find_checkpoint(run, "--out", choice, "--static")


def static_metrics(
    config: Config, run: RunDirectory, checkpoint: Checkpoint, lines: Sequence[Line]
) -> dict[str, dict[str, float]]:
    """Returns the metrics of a checkpoint on each segment after it, by name; those without files are left out.

    Results are kept in the run directory, line by line, and not computed again.

    Args:
        config: The configuration.
        run: The run directory.
        checkpoint: The checkpoint.
        lines: The segments, as in segments.jsonl.

    Raises:
        InputError: The checkpoint is another model's, or the data or a metric cannot be used.
    """
    check_metrics(config)
    name, asked = f"segments-static-{checkpoint.step}.jsonl", {"metrics": config.evaluate.metrics}
    evaluated = (line for line in run.read_records(name) if {"segment", "values"} <= line.keys())  # else it is damaged
    known = [line for line in evaluated if asked.items() <= line.items()]
    there = {line["segment"] for line in known}
    new = [line["segment"] for line in lines if line["first_step"] >= checkpoint.step and line["segment"] not in there]
    wanted = [segment for segment in new if look_at_segment(config.data, segment).files]
    if wanted:
        with process_group(config.train.collective_timeout_seconds) as context:
            types = RecordedTypes.of_checkpoint(checkpoint.url, checkpoint.train_state)
            model, catalogue = restore_evaluated(config, checkpoint, context), open_catalogue(config, context, types)
            for segment in wanted:
                data = data_of_segment(config.data, segment, "validation")
                evaluator = Evaluator(config.model_copy(update={"data": data}), context, types, catalogue)
                with model.averaged():
                    found = evaluator.evaluate(model.model, "validation", model.id_map)
                known.append({"segment": segment, **asked, "values": found})
                run.write(name, "".join(f"{json.dumps(line)}\n" for line in known))
    return {line["segment"]: line["values"] for line in known}
