"""Evaluation: every sample of a split exactly once, metrics over all ranks."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

from trainer.batches.catalogue import Catalogue, read_catalogue
from trainer.batches.loader import Loader
from trainer.checkpoint.choice import NEWEST, find_checkpoint
from trainer.checkpoint.restore import restore
from trainer.checkpoint.store import Checkpoint
from trainer.checkpoint.verify import verify_together
from trainer.config.optimizer import AverageConfig
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, broadcast_when_done, process_group
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.data.columns import RecordedTypes
from trainer.data.dataset import FileSet
from trainer.data.epoch_order import Lanes
from trainer.data.files import DataFile
from trainer.data.readers.formats import make_reader
from trainer.data.row_groups import find_evaluated_files
from trainer.metrics.checks import check_metrics
from trainer.metrics.evaluation import Metrics, predictions_of_items
from trainer.metrics.retrieval import ItemVectors
from trainer.rules.vocabulary import check_fingerprints
from trainer.run.reporter import format_metrics
from trainer.training.id_map import IdMap
from trainer.training.item_vectors import item_vectors
from trainer.training.resume import check_catalogue
from trainer.training.sharded_model import ShardedModel, build_sharded_model

SPLITS = ("validation", "test")


class Evaluator:
    """Evaluates a model on the splits that the configuration names.

    Args:
        config: The configuration.
        context: This process among the ranks that evaluate together.
        types: The types of the columns in the training data.
        catalogue: The catalogue; None to read it if it is needed.

    Attributes:
        splits: The files of each split.
        calibration_curves: The `calibration_curve` of each task in the last evaluation.
    """

    def __init__(
        self, config: Config, context: DistributedContext, types: RecordedTypes, catalogue: Catalogue | None = None
    ) -> None:
        self._config, self._context = config, context
        self._of_items = list(dict.fromkeys(predictions_of_items(config)))
        self._catalogue = catalogue or (open_catalogue(config, context, types) if self._of_items else None)
        self._batch_size = config.evaluate.global_batch_size or config.data.global_batch_size
        if self._batch_size % context.world_size:
            raise InputError(
                f"evaluate.global_batch_size is {self._batch_size}, which {context.world_size} ranks do not divide; "
                f"use a multiple of {context.world_size}"
            )

        def find(split: str) -> FileSet:
            files = find_evaluated_files(f"data.{split}", getattr(config.data, split), config.data)
            types.check(config.data, files.files)
            return files

        self.calibration_curves: dict[str, dict[str, list[float]]] = {}
        self.splits: dict[str, FileSet] = {
            split: broadcast_when_done(context, lambda split=split: find(split))
            for split in SPLITS
            if getattr(config.data, split)
        }

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, split: str, id_map: IdMap, give_up: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        """Evaluates on a split.

        Args:
            model: The model, detached from any training pipeline.
            split: validation or test.
            id_map: The rows of ids; an evaluation does not change it.
            give_up: Called before every batch; returns whether to give up, the same on all ranks.

        Returns:
            The metrics; None if `give_up` returned true.
        """
        files, context = self.splits[split], self._context
        # The order of samples may depend on the number of ranks here, unlike in training, so each rank is a lane.
        # Samples of weight 0 pad the last batch, because row-wise sharding fails on batches of unequal size.
        lanes = Lanes(files.rows, context.world_size, self._batch_size)
        loader = Loader(files, self._config.data, lanes, context.rank, context.world_size, seed=0, shuffle=False)
        model.eval()
        items = self._item_vectors(model, give_up)
        if items is None:
            return None
        metrics = Metrics(self._config, context.device, items)
        for batch in loader.batches(0, loader.steps_per_epoch):
            if give_up():
                return None
            _, outputs = model(id_map.looked_up(batch).to(context.device))
            metrics.update(outputs)
        model.train()
        found, self.calibration_curves = metrics.compute(context), metrics.calibration_curves()
        return found

    def _item_vectors(self, model: nn.Module, give_up: Callable[[], bool]) -> dict[str, ItemVectors] | None:
        if not self._of_items:
            return {}
        assert self._catalogue is not None
        size = self._batch_size // self._context.world_size
        data = self._config.data
        return item_vectors(model, self._catalogue, data, self._of_items, size, self._context, give_up)


def open_catalogue(
    config: Config,
    context: DistributedContext,
    types: RecordedTypes,
    samples: DataFile | None = None,
    start: Checkpoint | None = None,
) -> Catalogue | None:
    """Reads the catalogue on rank 0 and returns it on every rank; None without data.catalogue.

    Args:
        config: The configuration.
        context: This process among the ranks.
        types: The types of the columns of the samples.
        samples: A file of the samples that the items are joined with, as in `read_catalogue`.
        start: The checkpoint that a run resumes from.

    Raises:
        InputError: The catalogue cannot be used, or changed since the checkpoint.
    """
    if not config.data.catalogue.items:
        return None

    def read() -> Catalogue:
        catalogue = read_catalogue(config.data, config.model.item_features, samples, types)
        if start:
            check_catalogue(start, catalogue.fingerprint, config)
        return catalogue

    return broadcast_when_done(context, read)


def evaluate(config: Config, out: str, split: Literal["validation", "test"] = "test", checkpoint: str = NEWEST) -> None:
    """Evaluates a checkpoint of a run. CONFIG is a TOML file, such as RUN_DIR/config.toml.

    Args:
        config: The configuration; its planner and data sections may differ from the run's.
        out: The run directory, any fsspec URL.
        split: Which of the configuration's data sets to evaluate on.
        checkpoint: newest, best (by checkpoint.keep.best of RUN_DIR/config.toml), or the number of a step.

    Raises:
        InputError: There is no such checkpoint, it belongs to another model, or the data or a metric cannot be used.
    """
    with process_group(config.train.collective_timeout_seconds) as context:
        broadcast_from_rank0(context, lambda: check_metrics(config))
        run = RunDirectory(out)
        if not getattr(config.data, split):
            files = f"at least one {make_reader(config.data).format} file, glob or directory"
            others = "".join(f", or use --split {name}" for name in SPLITS if getattr(config.data, name))
            raise InputError(f"--split is {split}, but data.{split} is empty; name {files}{others}")
        chosen = verify_together(context, lambda find: find_checkpoint(run, "--out", checkpoint, "--checkpoint", find))
        evaluator = Evaluator(config, context, RecordedTypes.of_checkpoint(chosen.url, chosen.train_state))
        model = restore_evaluated(config, chosen, context)
        with model.averaged():
            metrics = evaluator.evaluate(model.model, split, model.id_map)
        if context.is_rank0 and metrics:
            print(f"step {chosen.step:,}  {split}: {format_metrics(metrics)}")
            run.write_json(f"evaluation-{split}.json", {"step": chosen.step, "split": split, **metrics})
            print(f"written to {without_secrets(run.url_of(f'evaluation-{split}.json'))}")


def restore_evaluated(config: Config, checkpoint: Checkpoint, context: DistributedContext) -> ShardedModel:
    """Builds a model and fills it with the weights to evaluate; evaluate it inside `averaged()`.

    Raises:
        InputError: The checkpoint belongs to another model, or the model cannot be built.
    """
    check_fingerprints(config.data.sparse, checkpoint.train_state.get("vocabularies", {}), checkpoint.url)
    model = build_sharded_model(config if config.optimizer.ema.evaluate else _without_averages(config), context)
    restore(checkpoint, model.restoring_evaluated(checkpoint.train_state), context, partial=True)
    return model


def _without_averages(config: Config) -> Config:
    optimizer = config.optimizer.model_copy(update={"ema": AverageConfig()})
    return config.model_copy(update={"optimizer": optimizer})
