"""Compares batch inference with evaluation, on the same files and model."""

import time

from benchmarks.bench.comparison import Comparison, alternate
from torchx_recsys.apps.predict.inference import Predictor, predict_parts
from torchx_recsys.apps.predict.kept_columns import ALL, kept_schema
from torchx_recsys.apps.predict.parts import PartFiles
from trainer.batches.batch import features_only
from trainer.config.root import Config
from trainer.core.run_directory import RunDirectory
from trainer.models.outputs import model_outputs
from trainer.training.evaluate import Evaluator
from trainer.training.session import Session

PARTS_PER_RANK = 2
TARGET = 0.9


def compare_inference(session: Session, steps: int, repeats: int) -> list[Comparison]:
    """Compares predictions, written with all columns of the data, with an evaluation, in rows per second."""
    predicted, evaluated = alternate(repeats, lambda: _predict(session, steps), lambda: _evaluate(session, steps))
    return [Comparison("predictions, all columns kept", "evaluation", "rows/s", TARGET, predicted, evaluated)]


def _predict(session: Session, steps: int) -> float:
    config, context, files = session.config, session.context, session.order.files
    data, batch_size = features_only(config.data), config.data.global_batch_size // context.world_size
    directory = RunDirectory(session.directory.url_of("parts"))
    directory.fs.makedirs(directory.path())
    parts = PartFiles(directory, files.rows, max(1, steps // PARTS_PER_RANK) * batch_size)
    numbers = list(range(len(parts.parts)))[: PARTS_PER_RANK * context.world_size]
    kept = kept_schema("data", (ALL,), files)
    predictor = Predictor(session.model, model_outputs(config), data, config.data, context.device)
    start = time.perf_counter()
    predict_parts(predictor, files, data, numbers, batch_size, kept, parts, context)
    rows = sum(stop - start for start, stop in (parts.parts[number] for number in numbers))
    return rows / (time.perf_counter() - start)


def _evaluate(session: Session, steps: int) -> float:
    config, context = session.config, session.context
    evaluator = Evaluator(_evaluated_on_training(config), context, session.order.types)
    left = iter(range(steps))
    start = time.perf_counter()
    evaluator.evaluate(session.model.model, "test", session.model.id_map, lambda: next(left, None) is None)
    rows = min(steps * config.data.global_batch_size, session.order.files.rows)
    return rows / (time.perf_counter() - start)


def _evaluated_on_training(config: Config) -> Config:
    return config.model_copy(update={"data": config.data.model_copy(update={"test": config.data.train})})
