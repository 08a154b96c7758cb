"""Tools for runs: TensorBoard, plans, schedules, pages, which features matter, checkpoints, exports, serving, ..."""

from torchx.specs import AppDef

from components.program import program


@program("tensorboard", separator=["--"], cpu=1, memMB=2048)
def tensorboard(
    *args: str,
    logdir: str = "runs",
    port: int = 6006,
    host: str = "localhost",
) -> AppDef:
    """Serves TensorBoard for one run directory or for a directory of them.

    Example: torchx run -s local_cwd tools.tensorboard --logdir runs

    Args:
        args: After `--`, more arguments of TensorBoard.
        logdir: Directory whose event files are shown, at any depth, as the job sees it; a path or an fsspec URL.
        port: Port to serve at.
        host: Address to serve at; 0.0.0.0 lets other hosts connect.
    """
    ...


@program("plan", flags={"nproc": "--world-size"}, implied=["nproc"], cpu=1, memMB=2048)
def plan(
    *args: str,
    config: str | None = None,
    nproc: int = 2,
    on: list[str] | None = None,
    find: list[str] | None = None,
    prices: str | None = None,
    vary: list[str] | None = None,
    run: str | None = None,
    page: str | None = None,
    png: str | None = None,
    out: str | None = None,
    overwrite: bool = False,
) -> AppDef:
    """Plans for a cluster given by name: whether the model fits, how long a step takes, where each table goes and why.

    Example: torchx run -s local_cwd tools.plan --config criteo_terabyte --on h100:2,a100:4

    Args:
        args: After `--`, overrides of the configuration file: `--section.key value ...`.
        config: Configuration file (TOML), as the job sees it; --run can do without.
        nproc: Number of ranks to plan for on this machine, without --on and --find; the job itself is one process.
        on: Clusters to plan for, HOST:NODES such as h100:8, separated by commas; several are compared.
        find: Hosts to look through for the cheapest and the smallest cluster that fits, separated by commas, or all.
        prices: Price file for --find, a path or an fsspec URL; by default the trainer's own.
        vary: Settings to change, one at a time, to see what each saves: batch, dimension, precision, comms, hotness,
            tables, or all.
        run: Run directory of a finished run, a path or an fsspec URL: its plan, and the planner's forecast
            beside the run's measurements.
        page: HTML file to draw the plan to, with clusters side by side; a path or an fsspec URL.
        png: Image to draw the same to, .png, a path or an fsspec URL.
        out: File to write the plan to, a path or an fsspec URL; planner.plan of a job takes it. With
            --run: the forecast and the measurements, as JSON.
        overwrite: Replace files that exist.
        h: Named resource of the node that plans; replaces cpu and memMB.
        cpu: CPU cores of the node that plans.
        memMB: Memory of the node that plans in MB.
    """
    ...


@program("schedule", flags={"draw": "--out"}, cpu=1, memMB=2048)
def schedule(
    *args: str,
    config: str,
    draw: str | None = None,
    overwrite: bool = False,
) -> AppDef:
    """Shows the learning rates of a run as a table, charts and a drawing, and the steps of its saves and evaluations.

    Example: torchx run -s local_cwd tools.schedule --config criteo_kaggle -- --train.steps 3000

    Args:
        args: After `--`, more arguments of `python -m trainer schedule`, and overrides of the configuration file.
        config: Configuration file (TOML), as the job sees it.
        draw: File to draw the rates to, .svg or .png, a path or an fsspec URL.
        overwrite: Replace a file that exists.
    """
    ...


@program("compare", cpu=1, memMB=2048)
def compare(
    *args: str,
    runs: list[str],
    page: str | None = None,
    overwrite: bool = False,
) -> AppDef:
    """Puts runs side by side: configuration, metrics with the spread of seeds, speed, and curves as a page.

    Example: torchx run -s local_cwd tools.compare --runs runs/a,runs/b --page compared.html

    Args:
        args: After `--`, more arguments of `python -m trainer compare`.
        runs: Run directories, paths or fsspec URLs, separated by commas; nothing is written to them.
        page: HTML file to draw everything to, for a browser, a path or an fsspec URL.
        overwrite: Replace a file that exists.
    """
    ...


@program("segments", cpu=1)
def segments(
    *args: str,
    config: str,
    out: str,
    to: str | None = None,
    static: str | None = None,
) -> AppDef:
    """Watches a run over segments: metrics, shifts of the data, exports and refusals, lag, as a page.

    Example: torchx run tools.segments --config movielens_segments --out runs/days --to exports/days

    Args:
        args: After `--`, overrides of the configuration file: `--section.key value ...`.
        config: Configuration file (TOML), as the job sees it.
        out: Run directory, a path or an fsspec URL; segments.html is written there.
        to: Directory of the run's exports, a path or an fsspec URL.
        static: Step of a kept checkpoint, or first: a model to evaluate on each segment since, beside the run's.
        memMB: Memory of the node in MB; static takes as much as an evaluation.
    """
    ...


@program("track", cpu=1, memMB=1024)
def track(
    *args: str,
    out: str,
    trackers: list[str] | None = None,
    export: str | None = None,
) -> AppDef:
    """Sends what the trackers of a run do not have yet, or a whole run to a tracker that has nothing of it.

    Example: torchx run -s local_cwd tools.track --out runs/movielens --trackers mlflow

    Args:
        args: After `--`, more arguments of `python -m trainer track`.
        out: Run directory, a path or an fsspec URL.
        trackers: Trackers, separated by commas; by default those of the run's report.trackers.
        export: Export of the run that they are to name, a path or an fsspec URL.
    """
    ...


@program("checkpoints", cpu=1, memMB=2048)
def checkpoints(
    *args: str,
    out: str,
    verify: bool = False,
    convert: str | None = None,
    step: int | None = None,
    overwrite: bool = False,
) -> AppDef:
    """Lists the checkpoints of a run, verifies them, or converts one to a single file of plain tensors.

    Example: torchx run -s local_cwd tools.checkpoints --out runs/movielens --verify True

    Args:
        args: After `--`, more arguments of `python -m trainer checkpoints`.
        out: Run directory, a path or an fsspec URL; nothing is written to it.
        verify: Whether to read all files back; the job fails if a checkpoint is damaged.
        convert: File to write a checkpoint to, a path or an fsspec URL, for torch.load or, by its suffix, safetensors.
        step: Step of the checkpoint to list, verify or convert; by default all, and the newest good one to convert.
        overwrite: Replace the converted file if it exists.
        memMB: Memory of the node in MB; converting a checkpoint takes as much as its size.
    """
    ...


@program("rewind", cpu=1)
def rewind(
    *args: str,
    out: str,
    segment: str,
    to: str,
) -> AppDef:
    """Goes back in a run over segments: makes a new run directory with the run as it was at the end of a segment.

    Example: torchx run -s local_cwd tools.rewind --out runs/days --segment 09 --to runs/mended

    Args:
        args: After `--`, more arguments of `python -m trainer rewind`.
        out: Run directory, a path or an fsspec URL; nothing is written to it.
        segment: Name of the segment to go back to.
        to: New run directory, a path or an fsspec URL.
    """
    ...


@program("importance")
def importance(
    *trainer_args: str,
    config: str,
    out: str,
    split: str = "validation",
    checkpoint: str | None = None,
    metric: str | None = None,
    rows: int = 50_000,
    repeats: int = 5,
    j: str = "1x1",
) -> AppDef:
    """Finds which features a trained model needs: permutes one after the other, and evaluates, with the spread.

    Example: torchx run -s local_cwd tools.importance --config movielens --out runs/movielens

    Args:
        trainer_args: After `--`, more arguments of `python -m trainer importance`, and overrides of the configuration.
        config: Configuration file (TOML), as the job sees it: config.toml of the run.
        out: Run directory that holds the checkpoint, a path or an fsspec URL; importance.json is written there.
        split: Split of the data set to evaluate on.
        checkpoint: Checkpoint to take: newest, best (by the run's checkpoint.keep.best) or the number of a step; by
            default best if the run keeps one.
        metric: Metric to sort by, as METRIC/TASK with several tasks; by default checkpoint.keep.best, or the first.
        rows: Rows to evaluate on at most.
        repeats: Permutations of each feature, over which the spread is taken.
        j: NODESxPROCS: nodes, and processes (ranks) on each.
    """
    ...


@program("embed")
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
        source: For an output: files, globs or directories with a row for each id, separated by commas; by default
            data.catalogue.items.
        id_column: For an output: column of the source with the ids; by default data.catalogue.id.
        checkpoint: Checkpoint to take: newest, best (by the run's checkpoint.keep.best) or the number of a step.
        rows_per_part: Vectors of each file that is written.
        j: NODESxPROCS: nodes, and processes (ranks) on each.
    """
    ...


@program("export", cpu=1)
def export(
    *args: str,
    config: str,
    out: str,
    to: str,
    checkpoint: str = "newest",
    split: str = "validation",
) -> AppDef:
    """Exports a checkpoint of a run as a directory that serves with torch alone, and takes raw columns.

    Example: torchx run -s local_cwd tools.export --config movielens --out runs/movielens --to exports/movielens

    Args:
        args: After `--`, more arguments of `python -m trainer export`, and overrides of the configuration file.
        config: Configuration file (TOML), as the job sees it.
        out: Run directory that holds the checkpoint, a path or an fsspec URL.
        to: Directory to write to, a path or an fsspec URL.
        checkpoint: Checkpoint to export: newest, best (by the run's checkpoint.keep.best) or the number of a step.
        split: Split of the data set whose rows check the exported model.
        memMB: Memory of the node in MB; 1 GB is needed, and three times the tables' memory, four with --compile.
    """
    ...


@program("rollback", cpu=1)
def rollback(
    *args: str,
    to: str,
) -> AppDef:
    """Rolls back: points current.json at the export before the current one.

    Example: torchx run -s local_cwd tools.rollback --to exports/movielens

    Args:
        args: After `--`, more arguments of `python -m trainer rollback`.
        to: Directory of exports, a path or an fsspec URL.
    """
    ...


@program("publish", cpu=1, memMB=2048)
def publish(
    *args: str,
    export: str,
    to: str,
    prefix: str | None = None,
    keep: int | None = None,
    all_rows: bool = False,
) -> AppDef:
    """Publishes the tables of an export to Redis as a new version, of which only changed rows are written.

    Example: torchx run -s local_cwd tools.publish --export exports/movielens --to redis://localhost:6379/0

    Args:
        args: After `--`, more arguments of `python -m trainer publish`.
        export: Directory of exports with tables in shards, or one step-N of it, a path or an fsspec URL.
        to: redis://HOST:PORT/DATABASE, rediss:// with TLS, or a directory for Parquet, a path or an fsspec URL. The
            password is better in the variable REDIS_PASSWORD of the job.
        prefix: Beginning of the keys in Redis; by default model.
        keep: Versions to keep in Redis, so that a reader can be that far behind; by default 3.
        all_rows: Write all rows, also those that did not change, such as to a store that has lost some.
    """
    ...


@program("serve", cpu=1)
def serve(
    *args: str,
    directory: str,
    port: int = 8000,
    host: str = "localhost",
) -> AppDef:
    """Serves an exported model over HTTP, for trying it out: JSON in and out.

    Example: torchx run -s local_cwd tools.serve --directory exports/movielens

    Args:
        args: After `--`, more arguments of `python -m trainer serve`.
        directory: Directory that tools.export wrote to, a path or an fsspec URL.
        port: Port to serve at.
        host: Address to serve at; 0.0.0.0 lets other hosts connect.
    """
    ...


@program("verify-resume", name="verify", gpu=0)
def verify_resume(
    *args: str,
    config: str,
    steps: int = 20,
    ranks: int = 2,
    other_ranks: int = 1,
    keep: str | None = None,
) -> AppDef:
    """Verifies that runs of a configuration resume exactly: trains, kills, resumes, and compares with a baseline run.

    Example: torchx run -s local_cwd tools.verify_resume --config movielens

    Args:
        args: After `--`, overrides of the configuration file: `--section.key value ...`.
        config: Configuration file (TOML), as the job sees it.
        steps: Steps of each run.
        ranks: Processes (ranks) of the baseline and of the interrupted run, all on one node.
        other_ranks: Ranks with which the interrupted run resumes in the second comparison.
        keep: New directory in which the runs and their logs are kept; by default a temporary one.
    """
    ...


@program("calibrate")
def calibrate(
    *trainer_args: str,
    out: str = "host.toml",
    j: str = "1x1",
    overwrite: bool = False,
) -> AppDef:
    """Measures the speeds of a kind of host, and writes them to a file for the planner.

    Example: torchx run -s local_cwd tools.calibrate --out host.toml -j 1x2

    Args:
        trainer_args: After `--`, more arguments of `python -m trainer calibrate`.
        out: File to write, a path or an fsspec URL.
        j: NODESxPROCS: nodes, and processes (ranks) on each; exchanges are measured on two ranks and more.
        overwrite: Replace a file that exists.
    """
    ...


@program("bench", gpu=0)
def bench(
    *args: str,
    out: str = "runs/${app_id}",
) -> AppDef:
    """Measures reading and training, or else CSV files, data checks, checkpoints, models, predictions or a roofline.

    Example: torchx run -s local_cwd tools.bench checkpoint --out runs/bench

    Args:
        args: `csv`, `check`, `checkpoint`, `features`, `models`, `predict`, `roofline` or `growth`, and flags
            of `python -m trainer bench`.
        out: Directory to write the results to.
    """
    ...
