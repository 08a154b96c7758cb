"""Tools for runs: TensorBoard, plans, schedules, checkpoints, vectors, exports, serving, and benchmarks."""

import torchx
from torchx.specs import AppDef

from components import launch


def tensorboard(
    *args: str,
    logdir: str = "runs",
    port: int = 6006,
    host: str = "localhost",
    h: str | None = None,
    cpu: int = 1,
    memMB: int = 2048,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    metadata: dict[str, str] | None = None,
) -> AppDef:
    """Serves TensorBoard for one run directory or for a directory of them.

    Example: torchx run -s local_cwd tools.tensorboard --logdir runs

    Args:
        args: After `--`, more arguments of TensorBoard.
        logdir: Directory whose event files are shown, at any depth, as the job sees it; a path or an fsspec URL.
        port: Port to serve at.
        host: Address to serve at; 0.0.0.0 lets other hosts connect.
        h: Named resource of the node; replaces cpu and memMB.
        cpu: CPU cores of the node.
        memMB: Memory of the node in MB.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
        metadata: Metadata of the role: kubernetes=file:///pod.yaml merges that file into its pods.
    """
    return launch.python(
        *("trainer", "tensorboard", "--logdir", logdir, "--port", str(port), "--host", host),
        *(("--", *args) if args else ()),
        name="tensorboard",
        node=launch.node(h, cpu, 0, memMB, image, env, mounts, metadata),
        port_map={"http": port},
    )


def plan(
    *args: str,
    config: str,
    nproc: int = 2,
    on: list[str] | None = None,
    find: list[str] | None = None,
    prices: str | None = None,
    vary: list[str] | None = None,
    page: str | None = None,
    png: str | None = None,
    out: str | None = None,
    overwrite: bool = False,
    h: str | None = None,
    cpu: int = 1,
    memMB: int = 2048,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    metadata: dict[str, str] | None = None,
) -> AppDef:
    """Plans for a cluster that need not be there: does it fit, how long is a step, what is where and why.

    Example: torchx run -s local_cwd tools.plan --config criteo_terabyte --on h100:2,a100:4

    Args:
        args: After `--`, overrides of the configuration file: `--section.key value ...`.
        config: Configuration file (TOML), as the job sees it.
        nproc: Number of ranks to plan for on this machine, without --on and --find; the job itself is one process.
        on: Clusters to plan for, HOST:NODES such as h100:8, separated by commas; several are compared.
        find: Hosts to find the cheapest and smallest cluster of that fits, separated by commas, or all.
        prices: Price file to find by, a path or an fsspec URL; without it the trainer's own.
        vary: What to change, one thing at a time, to see what it saves: batch, dimension, precision, comms, hotness,
            tables, or all.
        page: HTML file to draw the plan to, and clusters beside each other, a path or an fsspec URL.
        png: Image to draw the same to, .png, a path or an fsspec URL.
        out: File to write the plan to, a path or an fsspec URL; planner.plan of a job takes it.
        overwrite: Replace files that exist.
        h: Named resource of the node that plans; replaces cpu and memMB.
        cpu: CPU cores of the node that plans.
        memMB: Memory of the node that plans in MB.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
        metadata: Metadata of the role: kubernetes=file:///pod.yaml merges that file into its pods.
    """
    return launch.python(
        *("trainer", "plan", config),
        *(("--on", *on) if on else ("--find", *find) if find else ("--world-size", str(nproc))),
        *(("--prices", prices) if prices else ()),
        *(("--vary", *vary) if vary else ()),
        *(("--page", page) if page else ()),
        *(("--png", png) if png else ()),
        *(("--out", out) if out else ()),
        *(("--overwrite", "True") if overwrite else ()),
        *args,
        name="plan",
        node=launch.node(h, cpu, 0, memMB, image, env, mounts, metadata),
    )


def schedule(
    *args: str,
    config: str,
    draw: str | None = None,
    overwrite: bool = False,
    h: str | None = None,
    cpu: int = 1,
    memMB: int = 2048,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    metadata: dict[str, str] | None = None,
) -> AppDef:
    """Shows the learning rates of a configuration over a run: a table, charts, and a drawing.

    Example: torchx run -s local_cwd tools.schedule --config criteo_kaggle -- --train.steps 3000

    Args:
        args: After `--`, more arguments of `python -m trainer schedule`, and overrides of the configuration file.
        config: Configuration file (TOML), as the job sees it.
        draw: File to draw the rates to, .svg or .png, a path or an fsspec URL.
        overwrite: Replace a file that exists.
        h: Named resource of the node; replaces cpu and memMB.
        cpu: CPU cores of the node.
        memMB: Memory of the node in MB.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
        metadata: Metadata of the role: kubernetes=file:///pod.yaml merges that file into its pods.
    """
    return launch.python(
        *("trainer", "schedule", config),
        *(("--out", draw) if draw else ()),
        *(("--overwrite", "True") if overwrite else ()),
        *args,
        name="schedule",
        node=launch.node(h, cpu, 0, memMB, image, env, mounts, metadata),
    )


def checkpoints(
    *args: str,
    out: str,
    verify: bool = False,
    convert: str | None = None,
    step: int | None = None,
    overwrite: bool = False,
    h: str | None = None,
    cpu: int = 1,
    memMB: int = 2048,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    metadata: dict[str, str] | None = None,
) -> AppDef:
    """Lists the checkpoints of a run, verifies them, or converts one to a single file of plain tensors.

    Example: torchx run -s local_cwd tools.checkpoints --out runs/movielens --verify True

    Args:
        args: After `--`, more arguments of `python -m trainer checkpoints`.
        out: Run directory, a path or an fsspec URL; nothing is written to it.
        verify: Whether to read all files back; the job fails if a checkpoint is damaged.
        convert: File to write a checkpoint to, a path or an fsspec URL, for torch.load or, by its suffix, safetensors.
        step: Step of the only checkpoint to deal with; converted is the newest good one without it.
        overwrite: Replace a file to convert to that exists.
        h: Named resource of the node; replaces cpu and memMB.
        cpu: CPU cores of the node.
        memMB: Memory of the node in MB; to convert a checkpoint takes as much as it is large.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
        metadata: Metadata of the role: kubernetes=file:///pod.yaml merges that file into its pods.
    """
    return launch.python(
        *("trainer", "checkpoints", "--out", out),
        *(("--verify", "True") if verify else ()),
        *(("--convert", convert) if convert else ()),
        *(("--step", str(step)) if step is not None else ()),
        *(("--overwrite", "True") if overwrite else ()),
        *args,
        name="checkpoints",
        node=launch.node(h, cpu, 0, memMB, image, env, mounts, metadata),
    )


def embed(
    *trainer_args: str,
    config: str,
    out: str,
    to: str,
    output: str | None = None,
    table: str | None = None,
    source: list[str] | None = None,
    id_column: str | None = None,
    checkpoint: str = "newest",
    rows_per_part: int = 262_144,
    j: str = "1x1",
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 4096,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    name: str = "embed",
) -> AppDef:
    """Writes the vectors of a whole catalogue, or of all ids of a table, for a vector index.

    Example: torchx run tools.embed --config movielens_two_tower --out runs/a --output liked_item --to vectors

    Args:
        trainer_args: After `--`, overrides of the configuration file: `--section.key value ...`.
        config: Configuration file (TOML), as the job sees it.
        out: Run directory that holds the checkpoint, a path or an fsspec URL.
        to: Directory or fsspec URL for the vectors, which every node reaches.
        output: Output of the model, NAME_item or NAME_query; set this or table.
        table: Embedding table; set this or output.
        source: Of an output, files, globs or directories with a row for each id, separated by commas; without it those
            of data.catalogue.items.
        id_column: Of an output, column of the source with the ids; without it data.catalogue.id.
        checkpoint: Checkpoint to take: newest, best (by the run's checkpoint.keep.best) or the number of a step.
        rows_per_part: Vectors of each file that is written.
        j: NODESxPROCS: nodes, and processes (ranks) on each.
        h: Named resource of each node; replaces cpu, gpu and memMB.
        cpu: CPU cores of each node.
        gpu: GPUs of each node.
        memMB: Memory of each node in MB.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
        metadata: Metadata of the role: kubernetes=file:///pod.yaml merges that file into its pods.
        max_retries: Number of times that the scheduler restarts a failed job.
        name: Name of the job; its app id begins with it.
    """
    return launch.torchrun(
        *("embed", config, "--out", out, "--to", to, "--checkpoint", checkpoint),
        *(("--output", output) if output else ()),
        *(("--table", table) if table else ()),
        *(("--source", *source) if source else ()),
        *(("--id-column", id_column) if id_column else ()),
        *("--rows-per-part", str(rows_per_part)),
        *trainer_args,
        name=name,
        j=j,
        node=launch.node(h, cpu, gpu, memMB, image, env, mounts, metadata),
        max_retries=max_retries,
    )


def export(
    *args: str,
    config: str,
    out: str,
    to: str,
    checkpoint: str = "newest",
    split: str = "validation",
    h: str | None = None,
    cpu: int = 1,
    memMB: int = 4096,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    metadata: dict[str, str] | None = None,
) -> AppDef:
    """Exports a checkpoint of a run as a directory that serves with torch alone, and takes raw columns.

    Example: torchx run -s local_cwd tools.export --config movielens --out runs/movielens --to exports/movielens

    Args:
        args: After `--`, more arguments of `python -m trainer export`, and overrides of the configuration file.
        config: Configuration file (TOML), as the job sees it.
        out: Run directory that holds the checkpoint, a path or an fsspec URL.
        to: Directory to write to, a path or an fsspec URL.
        checkpoint: Checkpoint to export: newest, best (by the run's checkpoint.keep.best) or the number of a step.
        split: Split of the data set to take rows from that the exported model is checked with.
        h: Named resource of the node; replaces cpu and memMB.
        cpu: CPU cores of the node.
        memMB: Memory of the node in MB; one GB is needed, and three times that of the tables, four with --compile.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
        metadata: Metadata of the role: kubernetes=file:///pod.yaml merges that file into its pods.
    """
    return launch.python(
        *("trainer", "export", config, "--out", out, "--to", to, "--checkpoint", checkpoint, "--split", split),
        *args,
        name="export",
        node=launch.node(h, cpu, 0, memMB, image, env, mounts, metadata),
    )


def serve(
    *args: str,
    directory: str,
    port: int = 8000,
    host: str = "localhost",
    h: str | None = None,
    cpu: int = 1,
    memMB: int = 4096,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    metadata: dict[str, str] | None = None,
) -> AppDef:
    """Serves an exported model over HTTP, to look at it: JSON in and out.

    Example: torchx run -s local_cwd tools.serve --directory exports/movielens

    Args:
        args: After `--`, more arguments of `python -m trainer serve`.
        directory: Directory that tools.export wrote to, a path or an fsspec URL.
        port: Port to serve at.
        host: Address to serve at; 0.0.0.0 lets other hosts connect.
        h: Named resource of the node; replaces cpu and memMB.
        cpu: CPU cores of the node.
        memMB: Memory of the node in MB.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
        metadata: Metadata of the role: kubernetes=file:///pod.yaml merges that file into its pods.
    """
    return launch.python(
        *("trainer", "serve", "--directory", directory, "--host", host, "--port", str(port)),
        *args,
        name="serve",
        node=launch.node(h, cpu, 0, memMB, image, env, mounts, metadata),
        port_map={"http": port},
    )


def verify_resume(
    *args: str,
    config: str,
    steps: int = 20,
    ranks: int = 2,
    other_ranks: int = 1,
    keep: str | None = None,
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 4096,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    metadata: dict[str, str] | None = None,
) -> AppDef:
    """Verifies that a configuration's runs resume exactly: trains, kills, resumes, and compares with a baseline run.

    Example: torchx run -s local_cwd tools.verify_resume --config movielens

    Args:
        args: After `--`, overrides of the configuration file: `--section.key value ...`.
        config: Configuration file (TOML), as the job sees it.
        steps: Steps of each run.
        ranks: Processes (ranks) of the baseline and of the interrupted run, all on one node.
        other_ranks: Ranks with which the interrupted run resumes in the second comparison.
        keep: New directory for the runs and their logs, which stay there; a temporary one without it.
        h: Named resource of the node; replaces cpu, gpu and memMB.
        cpu: CPU cores of the node.
        gpu: GPUs of the node.
        memMB: Memory of the node in MB.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
        metadata: Metadata of the role: kubernetes=file:///pod.yaml merges that file into its pods.
    """
    return launch.python(
        *("trainer", "verify-resume", config, "--steps", str(steps)),
        *("--ranks", str(ranks), "--other-ranks", str(other_ranks)),
        *(("--keep", keep) if keep else ()),
        *args,
        name="verify",
        node=launch.node(h, cpu, gpu, memMB, image, env, mounts, metadata),
    )


def calibrate(
    *trainer_args: str,
    out: str = "host.toml",
    j: str = "1x1",
    overwrite: bool = False,
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 4096,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    name: str = "calibrate",
) -> AppDef:
    """Measures a kind of host, once, into a file that plans count with from then on.

    Example: torchx run -s local_cwd tools.calibrate --out host.toml -j 1x2

    Args:
        trainer_args: After `--`, more arguments of `python -m trainer calibrate`.
        out: File to write, a path or an fsspec URL.
        j: NODESxPROCS: nodes, and processes (ranks) on each; exchanges are measured on two ranks and more.
        overwrite: Replace a file that exists.
        h: Named resource of each node; replaces cpu, gpu and memMB.
        cpu: CPU cores of each node.
        gpu: GPUs of each node.
        memMB: Memory of each node in MB.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
        metadata: Metadata of the role: kubernetes=file:///pod.yaml merges that file into its pods.
        max_retries: Number of times that the scheduler restarts a failed job.
        name: Name of the job; its app id begins with it.
    """
    return launch.torchrun(
        *("calibrate", "--out", out),
        *(("--overwrite", "True") if overwrite else ()),
        *trainer_args,
        name=name,
        j=j,
        node=launch.node(h, cpu, gpu, memMB, image, env, mounts, metadata),
        max_retries=max_retries,
    )


def bench(
    *args: str,
    out: str = "runs/${app_id}",
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 4096,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    metadata: dict[str, str] | None = None,
) -> AppDef:
    """Measures reading and training; with `checkpoint`, saves and restores; `features`, `models`, `predict`: these.

    Example: torchx run -s local_cwd tools.bench checkpoint --out runs/bench

    Args:
        args: `csv`, `check`, `checkpoint`, `features`, `models` or `predict`, and flags of `python -m trainer bench`.
        out: Directory to write the results to.
        h: Named resource of the node; replaces cpu, gpu and memMB.
        cpu: CPU cores of the node.
        gpu: GPUs of the node.
        memMB: Memory of the node in MB.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
        metadata: Metadata of the role: kubernetes=file:///pod.yaml merges that file into its pods.
    """
    return launch.python(
        *("trainer", "bench", "--out", out),
        *args,
        name="bench",
        node=launch.node(h, cpu, gpu, memMB, image, env, mounts, metadata),
    )
