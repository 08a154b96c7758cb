"""Jobs for recommendation models: training on one node or on many, evaluation and batch inference."""

from typing import Any

import torchx
from torchx.specs import AppDef

from components import launch
from components.program import like, program


def multi_node(
    *trainer_args: str,
    config: str,
    out: str = "runs/${app_id}",
    j: str = "1x2",
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 4096,
    resume: str = "auto",
    seeds: list[str] | None = None,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    name: str = "dlrm",
) -> AppDef:
    """Trains a recommendation model on several nodes, its tables sharded over all ranks.

    Example: torchx run -s slurm dlrm.multi_node --config criteo_kaggle -j 2x8 --gpu 8 -- --train.epochs 2

    Args:
        trainer_args: After `--`, overrides of the configuration file: `--section.key value ...`.
        config: Configuration file (TOML), as the job sees it.
        out: Run directory, a path or an fsspec URL that every node reaches.
        j: NODESxPROCS: nodes, and processes (ranks) on each; MIN:NODESxPROCS starts with MIN nodes.
        h: Named resource of each node; replaces cpu, gpu and memMB.
        cpu: CPU cores of each node.
        gpu: GPUs of each node.
        memMB: Memory of each node in MB.
        resume: Use of checkpoints in the run directory: auto (resume from the newest, if any),
            never (refuse if there is one) or must (refuse if there is none).
        seeds: One run for each seed, such as 1,2,3, in OUT/seed-SEED: on Slurm a job array, else jobs of their own.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
        metadata: Metadata of the role: kubernetes=file:///pod.yaml merges that file into its pods.
        max_retries: Number of times that the scheduler restarts a failed job.
        name: Name of the job; its app id begins with it.
    """
    launch.choice("--resume", resume, ("auto", "never", "must"))

    def train(out: str, *seed: str) -> AppDef:
        return launch.torchrun(
            *("train", config, "--out", out, "--resume", resume),
            *trainer_args,
            *seed,
            name=name,
            j=j,
            node=launch.node(h, cpu, gpu, memMB, image, env, mounts, metadata),
            max_retries=max_retries,
        )

    if not seeds:
        return train(out)
    return launch.one_run_for_each(seeds, out, lambda out, seed: train(out, "--train.seed", seed))


@like(multi_node, nproc="j")
def single_node(*trainer_args: str, nproc: int = 1, **flags: Any) -> AppDef:  # noqa: D417
    """Trains a recommendation model on one node.

    Example: torchx run -s local_cwd dlrm.single_node --config movielens -- --train.steps 100

    Args:
        out: Run directory, a path or an fsspec URL.
        nproc: Number of processes (ranks), usually one for each GPU.
        h: Named resource of the node; replaces cpu, gpu and memMB.
        cpu: CPU cores of the node.
        gpu: GPUs of the node.
        memMB: Memory of the node in MB.
    """
    return multi_node(*trainer_args, j=launch.one_node(nproc), **flags)


@like(multi_node)
def data_parallel(*trainer_args: str, **flags: Any) -> AppDef:
    """Trains a recommendation model with a copy of every table on every rank.

    Example: torchx run -s local_cwd dlrm.data_parallel --config movielens -j 1x2
    """
    return multi_node("--planner.mode", "data_parallel", *trainer_args, **flags)


@program("evaluate")
def evaluate(
    *trainer_args: str,
    config: str,
    out: str,
    split: str = "test",
    checkpoint: str = "newest",
    j: str = "1x2",
) -> AppDef:
    """Evaluates a checkpoint of a run.

    Example: torchx run -s local_cwd dlrm.evaluate --config movielens --out runs/movielens

    Args:
        trainer_args: After `--`, overrides of the configuration file: `--section.key value ...`.
        config: Configuration file (TOML), as the job sees it.
        out: Run directory that holds the checkpoint, a path or an fsspec URL.
        split: Split of the data set to evaluate on.
        checkpoint: Checkpoint to evaluate: newest, best (by the run's checkpoint.keep.best) or the number of a step.
        j: NODESxPROCS: nodes, and processes (ranks) on each.
    """
    ...


@program("predict", lists=["keep_columns"])
def predict(
    *trainer_args: str,
    config: str,
    out: str,
    source: list[str],
    to: str,
    checkpoint: str = "newest",
    keep_columns: str = "*",
    outputs: list[str] | None = None,
    rows_per_part: int = 262_144,
    batch_size: int = 4096,
    j: str = "1x2",
) -> AppDef:
    """Writes a model's outputs for every row of a data set; an interrupted job continues where it stopped.

    Example: torchx run dlrm.predict --config movielens --out runs/a --source data/movielens/test --to predictions

    Args:
        trainer_args: After `--`, overrides of the configuration file: `--section.key value ...`.
        config: Configuration file (TOML), as the job sees it.
        out: Run directory that holds the checkpoint, a path or an fsspec URL.
        source: Files, globs or directories to predict, on any fsspec URL, separated by commas.
        to: Directory or fsspec URL for the parts, which every node reaches.
        checkpoint: Checkpoint to predict with: newest, best (by the run's checkpoint.keep.best) or the number of a
            step.
        keep_columns: Columns of the data to keep, separated by commas; * for all, nothing for none.
        outputs: Outputs of the model to write, separated by commas; by default all.
        rows_per_part: Rows of each file that is written, a multiple of batch_size.
        batch_size: Rows that a rank computes at once.
        j: NODESxPROCS: nodes, and processes (ranks) on each.
    """
    ...


@program("recommend")
def recommend(
    *trainer_args: str,
    config: str | None = None,
    out: str | None = None,
    to: str | None = None,
    k: int = 10,
    users: list[str] | None = None,
    source: list[str] | None = None,
    user_column: str | None = None,
    time_column: str | None = None,
    items: list[str] | None = None,
    item_column: str | None = None,
    show: list[str] | None = None,
    where: str | None = None,
    seen: list[str] | None = None,
    task: str | None = None,
    index: str | None = None,
    export: str | None = None,
    checkpoint: str = "newest",
    users_per_part: int = 1024,
    batch_size: int = 1024,
    j: str = "1x2",
) -> AppDef:
    """Lists the top items of a catalogue for users; an interrupted job continues where it stopped.

    Example: torchx run dlrm.recommend --config movielens_two_tower --out runs/a --user_column user_id --to lists

    Args:
        trainer_args: After `--`, overrides of the configuration file: `--section.key value ...`.
        config: Configuration file (TOML), as the job sees it; with out, unless export is given.
        out: Run directory that holds the checkpoint, a path or an fsspec URL.
        to: Directory or fsspec URL for the parts, which every node reaches; without it, lists of --users are printed.
        k: Items of a list.
        users: Ids of users, separated by commas; by default all of the source.
        source: Files, globs or directories with rows of users, on any fsspec URL, separated by commas; by default
            data.test, or else data.validation.
        user_column: Column of the source with the users' ids; by default the one of data.groups besides
            data.catalogue.id.
        time_column: Column by which a user's newest row is found; by default the last row.
        items: Files, globs or directories with a row for each item; by default data.catalogue.items.
        item_column: Column of the items with their ids; by default data.catalogue.id.
        show: Columns of the items to show, separated by commas; by default title or name, if there is one.
        where: Condition on the columns of the items, as in SQL.
        seen: Files, globs or directories with users and items to leave out of the users' lists, besides
            data.catalogue.exclude.
        task: Task that scores items; by default the first.
        index: Index of faiss for a model of vectors, in the words of its index_factory, such as HNSW32; by default all
            items are compared, and lists are exact.
        export: Directory of exports, or one step-N of it, in place of config and out, a path or an fsspec URL; it needs
            items, source and user_column.
        checkpoint: Checkpoint to take: newest, best (by the run's checkpoint.keep.best) or the number of a step.
        users_per_part: Users of each file that is written.
        batch_size: Rows that a rank computes at once.
        j: NODESxPROCS: nodes, and processes (ranks) on each.
    """
    ...
