"""Evaluation: every row of a split exactly once, metrics over all ranks."""

from collections.abc import Callable

import torch
from torch import nn

from trainer.checkpoint import Checkpoints
from trainer.config import Config
from trainer.data.files import FileSet, find_files
from trainer.data.lanes import Lanes
from trainer.data.loader import Loader
from trainer.distributed import Ranks, from_main, process_group
from trainer.job import build_job
from trainer.metrics import BinaryMetrics
from trainer.report import format_metrics
from trainer.restore import restore
from trainer.run_directory import RunDirectory
from trainer.state import model_tensors


class Evaluator:
    """Evaluates a model on the splits that the configuration names.

    Args:
        config: The configuration.
        ranks: This process among the ranks that evaluate together.
    """

    def __init__(self, config: Config, ranks: Ranks) -> None:
        self._config, self._ranks = config, ranks
        self._batch_size = config.evaluate.global_batch_size or config.data.global_batch_size
        if self._batch_size % ranks.world_size:
            raise ValueError(
                f"evaluate.global_batch_size is {self._batch_size}, which {ranks.world_size} ranks do not divide; "
                f"use a multiple of {ranks.world_size}"
            )
        self._files: dict[str, FileSet] = {
            split: from_main(ranks, lambda split=split: find_files(split, getattr(config.data, split), config.data))
            for split in ("validation", "test")
            if getattr(config.data, split)
        }

    @property
    def splits(self) -> list[str]:
        """The splits that the configuration names."""
        return list(self._files)

    def due(self, step: int) -> bool:
        """Tells whether to evaluate on the validation split after a step."""
        every = self._config.evaluate.every_steps
        return every > 0 and step % every == 0 and "validation" in self._files

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, split: str, give_up: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        """Evaluates on a split.

        Args:
            model: It must not be attached to a training pipeline.
            split: validation or test.
            give_up: Asked before every batch; the same on all ranks.

        Returns:
            The metrics, None if it was given up.
        """
        files, ranks = self._files[split], self._ranks
        lanes = Lanes(files.rows, ranks.world_size, self._batch_size)
        loader = Loader(files, self._config.data, lanes, ranks.rank, ranks.world_size, seed=0, shuffle=False)
        metrics = BinaryMetrics(self._config.data.labels, ranks.device)
        model.eval()
        for batch in loader.batches(0, loader.steps_per_epoch):
            if give_up():
                return None
            _, (_, logits, labels, weights) = model(batch.to(ranks.device))
            metrics.update(logits, labels, weights)
        model.train()
        return metrics.compute(ranks)


def evaluate(config: Config, out: str, split: str) -> None:
    """Evaluates the newest checkpoint of a run and prints the metrics.

    Args:
        config: The configuration; its planner and data sections may differ from the run's.
        out: The run directory, any fsspec URL.
        split: validation or test.

    Raises:
        ValueError: There is no checkpoint, it is another model's, or the data cannot be used.
    """
    with process_group() as ranks:
        run = RunDirectory(out)
        evaluator = Evaluator(config, ranks)
        if split not in evaluator.splits:
            raise ValueError(f"--split is {split}, but data.{split} is empty; name at least one Parquet file")
        checkpoint = from_main(ranks, Checkpoints(run).newest)
        if checkpoint is None:
            raise ValueError(f"--out is '{out}', which holds no committed checkpoint; train first")
        job = build_job(config, ranks)
        restore(checkpoint, model_tensors(job.model), ranks, partial=True)
        metrics = evaluator.evaluate(job.model, split)
        if ranks.is_main and metrics:
            print(f"step {checkpoint.step:,}  {split}: {format_metrics(metrics)}")
            run.write_json(f"evaluation-{split}.json", {"step": checkpoint.step, "split": split, **metrics})
            print(f"written to {run.url_of(f'evaluation-{split}.json')}")
