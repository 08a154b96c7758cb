"""Speed of checking data beside plain pyarrow on the same files."""

from collections.abc import Iterator

from apps.check_data.check_data import check_data
from benchmarks.bench.comparison import Comparison, alternate
from benchmarks.bench.readers import one_core, rate, read_columns
from trainer.config.root import Config
from trainer.training.session import Session

FEW, MANY = 10_000, 50_000  # rows that figures are of: few, and as many as without --rows


def compare_check(session: Session, steps: int, repeats: int) -> list[Comparison]:
    """Compares a check of all rows with plain reading of the same columns; `steps` has no use here."""
    if not session.context.is_rank0:
        return []
    config, files = session.config, session.order.files
    with one_core():
        many, few, arrow = alternate(
            repeats,
            lambda: rate(_check(config, MANY)),
            lambda: rate(_check(config, FEW)),
            lambda: rate(read_columns(files, config.data)),
        )
    alone = "pyarrow, same columns"
    return [
        Comparison(f"check, figures of {MANY:,} rows", alone, "rows/s", 0.5, many, arrow),
        Comparison(f"check, figures of {FEW:,} rows", alone, "rows/s", 0.5, few, arrow),
    ]


def _check(config: Config, rows: int) -> Iterator[int]:
    yield check_data(config, rows=rows, all=True)["splits"]["train"]["read"]
