"""The data set: its files, features and labels, which samples are trained on, and in which order."""

import itertools
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import pydantic

from trainer.config.conditions import Clause, Condition, check_conditions, clauses_of
from trainer.config.features import (
    DenseFeature,
    SparseFeature,
    check_dense,
    check_sparse,
    columns_beside,
    columns_of,
    takes,
)
from trainer.config.files import CsvConfig, SegmentsConfig
from trainer.config.history import HistoryConfig
from trainer.config.stream import StreamConfig
from trainer.core.errors import InputError, nearest, some_of
from trainer.core.section import MayChange, Section, fixed_values
from trainer.rules.registry import lists_ids


class SelectConfig(Section):
    """Which samples are trained on, if not all. The filter applies to evaluations, too."""

    filter: list[Condition] = []
    """Conditions that must all hold: a column, a comparison and a value, such as ["country", "==", "DE"]. The column
    need not be a feature. Comparisons are ==, !=, <, <=, >, >=, in, not in; the last two take a list."""
    keep_negatives: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Fraction of the samples with first label 0 in an epoch, drawn anew each epoch. Their weights make up for it."""
    files: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Fraction of the files to train on, at least one file, for a quick look."""
    mixture: dict[str, pydantic.PositiveFloat] = {}
    """How often an epoch repeats the samples of some files, by file, glob or directory. Other files count once."""

    @pydantic.model_validator(mode="after")
    def _known_comparisons(self) -> Self:
        check_conditions("data.select.filter", self.filter)
        return self

    @property
    def clauses(self) -> list[Clause]:
        """The conditions of the filter."""
        return clauses_of(self.filter)


@dataclass(frozen=True)
class LaneRows:
    """The rows of a lane in a step: its samples, the drawn negatives, then the hard negatives sample by sample.

    Attributes:
        samples: Samples.
        drawn: Drawn negatives, shared by all samples.
        hard: Hard negatives of each sample.
    """

    samples: int
    drawn: int
    hard: int

    @property
    def negatives(self) -> int:
        """Rows of negatives."""
        return self.drawn + self.samples * self.hard

    @property
    def total(self) -> int:
        """All rows."""
        return self.samples + self.negatives


class CatalogueConfig(Section):
    """The catalogue: all items, with the features in model.item_features."""

    items: list[str] = []
    """Files, globs or directories, on any fsspec URL, with one row per item."""
    id: str | None = None
    """Column with the ids of the items, and column of data.groups with the item of each sample."""
    weight: str | None = None
    """Column with the weight by which items are drawn as negatives, such as a count. Unset: all weigh 1."""
    negatives: pydantic.NonNegativeInt = 0
    """Items drawn per lane and step; sampled_softmax takes them as negatives of all samples of the lane."""
    hard_negatives: str | None = None
    """Column of the samples with a list of items, which sampled_softmax takes as negatives of that sample alone."""
    hard_negatives_per_sample: pydantic.PositiveInt = 1
    """Items taken from the beginning of each such list."""
    negatives_not_in: list[str] = pydantic.Field([], exclude_if=lambda names: not names)
    """Sparse features with items that the query has had: items drawn, and in_batch_softmax's items of other samples,
    are no negatives of a sample that has them there. Hard negatives stay."""
    exclude: Annotated[list[str], MayChange] = []
    """Sparse features with items that the query has had already, which metrics over all items and recommended lists
    leave out. The sample's own item stays in."""

    @property
    def had(self) -> list[str]:
        """The sparse features with items that the query has had."""
        return [*self.exclude, *self.negatives_not_in]

    @property
    def hard(self) -> int:
        """Hard negatives of each sample."""
        return self.hard_negatives_per_sample if self.hard_negatives else 0

    def lane_rows(self, samples: int) -> LaneRows:
        """Returns the rows of a lane that holds this many samples."""
        return LaneRows(samples, self.negatives, self.hard)


class BalanceConfig(Section):
    """Which rank computes which samples of a step: those of its lanes, or samples of equal cost.

    A step has the same samples either way, and the same loss but for rounding, so that the keys may change on resume.
    """

    features: Annotated[list[str], MayChange] = []
    """Sparse features with lists whose lengths make the cost of a sample. Each rank then reads the samples of all ranks
    and keeps its own. Unset: a rank takes the samples of its lanes."""
    squares: Annotated[pydantic.NonNegativeFloat, MayChange] = 0.0
    """How much the square of a length costs beside the length itself, as attention's does: 0.01 for l + 0.01 l^2."""
    cost: Annotated[str | None, MayChange] = None
    """Instead: column with the cost of each sample, a number of at least 0."""

    @property
    def is_on(self) -> bool:
        """Whether samples are dealt by cost."""
        return bool(self.features or self.cost)


class EvenStepsConfig(Section):
    """Which samples of a shuffle window make a step: the next ones, or samples that cost as much as any other step's.

    The keys decide the order of samples, and may not change on resume.
    """

    features: list[str] = []
    """Sparse features with lists whose lengths make the cost of a sample. Unset: the samples that come next."""
    squares: pydantic.NonNegativeFloat = 0.0
    """How much the square of a length costs beside the length itself, as in data.balance."""
    cost: str | None = None
    """Instead: column with the cost of each sample, a number of at least 0."""

    @property
    def is_on(self) -> bool:
        """Whether samples are dealt by cost."""
        return bool(self.features or self.cost)


def _by(section: BalanceConfig | EvenStepsConfig, key: str) -> str:
    """Returns what makes the cost of a sample, as a key with its value."""
    return f"{key}.cost is '{section.cost}'" if section.cost else f"{key}.features is {section.features}"


class DataConfig(Section):
    """The data set and how it is read."""

    reader: str = "parquet"
    """Format of the files: parquet, csv, tsv, arrow, kafka (see data.stream), or package.module:Reader for your own."""
    csv: CsvConfig = CsvConfig()
    cache: Annotated[str | None, MayChange] = None
    """Cache directory, on any fsspec URL, for the footers of data sets of many files, so that the next start does not
    read them again. Unset: torchx-recsys in the user's cache directory."""
    train: list[str] = []
    """Files, globs or directories, on any fsspec URL, to train on."""
    validation: Annotated[list[str], MayChange] = []
    """The same, for the evaluations during and after training."""
    test: Annotated[list[str], MayChange] = []
    """The same, for the evaluation after training."""
    segments: SegmentsConfig = SegmentsConfig()
    stream: StreamConfig = StreamConfig()
    select: SelectConfig = SelectConfig()
    dense: dict[str, DenseFeature] = {}
    """Dense features by name. A feature reads the column of its name, unless it names another column."""
    sparse: dict[str, SparseFeature] = {}
    """Sparse features by name, in the same way."""
    history: HistoryConfig = HistoryConfig()
    labels: list[str] = ["label"]
    """Label columns, with values in [0, 1] except numeric_labels. Without [tasks], the model has one output each."""
    numeric_labels: list[str] = []
    """Labels that may have any finite value, such as a duration or the number of a class."""
    classes: dict[str, list[str | int]] = {}
    """The values of a label column of text or integers, such as cut = ["fair", "good"]: the label is the place of its
    value, from 0. With more than two, name the label in numeric_labels, too."""
    groups: list[str] = []
    """Columns of integers or strings by which losses and metrics group samples, such as users; no model sees them."""
    catalogue: CatalogueConfig = CatalogueConfig()
    weight: str | None = None
    """Column with the weight of each sample. Unset: every sample weighs 1."""
    global_batch_size: pydantic.PositiveInt = 8192
    """Samples per step, over all ranks."""
    balance: BalanceConfig = BalanceConfig()
    even_steps: EvenStepsConfig = EvenStepsConfig()
    lanes: Annotated[pydantic.PositiveInt | None, MayChange] = None
    """Equal parts of an epoch. Unset: the smallest multiple of the first run's number of ranks that is at least 8."""
    shuffle: bool = True
    """Permute the row groups every epoch and shuffle samples within windows. Evaluation never shuffles."""
    shuffle_window_rows: pydantic.PositiveInt = 65536
    """Most samples of a lane that are shuffled together: whole row groups where they fit."""
    last_batch: Literal["keep", "drop"] = "keep"
    """The last, short batch of a training epoch: keep pads it with samples of weight zero, drop leaves it out."""
    accept_changed: Annotated[bool, MayChange] = False
    """Resume even if the training files or the catalogue differ from those of the checkpoint."""
    read_threads: Annotated[pydantic.PositiveInt | None, MayChange] = None
    """Threads per rank that read and decode ahead of training. Unset: half of the rank's cores, but 2 to 4."""
    prefetch_batches: Annotated[pydantic.PositiveInt, MayChange] = 8
    """Batches per rank that are kept ready for training."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, feature in self.dense.items():
            check_dense(name, feature)  # first, as it reads the columns of expressions
        self._check_labels()
        self._check_catalogue()
        self._check_history()
        self.csv.check(self.reader, self.columns)
        self._check_segments()
        if self.select.keep_negatives < 1 and self.labels[0] in self.numeric_labels:
            raise InputError(
                f"data.select.keep_negatives is {self.select.keep_negatives}, but data.numeric_labels names "
                f"'{self.labels[0]}', the first of data.labels, in which 0 does not mean a negative; leave it 1"
            )
        of_ids = {name: columns_of(name, one) for name, one in self.sparse.items() if takes(one) == "ids"}
        for name, feature in self.sparse.items():
            check_sparse(name, feature, of_ids)
            self._check_shared_table(name, feature)
        self._check_balance()
        return self

    def _check_segments(self) -> None:
        """Refuses keys for which a segment would never be complete."""
        given = self.segments.model_dump(exclude_defaults=True)
        for key in ("marker", "least_files"):
            if self.reader == "kafka" and key in given:
                raise InputError(
                    f"data.segments.{key} is {given[key]!r}, but data.reader is 'kafka', with a file for each segment, "
                    "which is there once the segment is complete; leave it out"
                )

    def _check_history(self) -> None:
        for name in self.history.columns:
            if name not in self.columns:
                raise InputError(
                    f"data.history.columns names '{name}', which no feature reads{nearest(name, self.columns)}; name "
                    "the column of a feature"
                )
        for name, feature in self.dense.items():
            if feature.width and (column := feature.column or name) in self.history.columns:
                raise InputError(
                    f"data.dense.{name}.width is {feature.width}, but data.history.columns makes '{column}', whose "
                    "lists differ in length; take a column of the files"
                )

    def _check_balance(self) -> None:
        balance, even_steps = self.balance, self.even_steps
        for key, section in (("data.balance", balance), ("data.even_steps", even_steps)):
            for name in section.features:
                if name not in self.sparse:
                    raise InputError(
                        f"{key}.features names '{name}', which is no sparse feature{nearest(name, self.sparse)}"
                    )
            if section.features and section.cost:
                raise InputError(
                    f"{key}.features is {section.features} and {key}.cost is '{section.cost}'; set one of them"
                )
            if section.squares and not section.features:
                raise InputError(
                    f"{key}.squares is {section.squares}, but {key}.features is empty; name features with lists, or "
                    "leave it out"
                )
        if even_steps.is_on and not self.shuffle:
            raise InputError(
                f"{_by(even_steps, 'data.even_steps')}, but data.shuffle is false, which keeps the order of the files; "
                "leave one of them out"
            )
        if balance.is_on and self.catalogue.negatives + self.catalogue.hard:
            raise InputError(
                f"{_by(balance, 'data.balance')}, but data.catalogue gives each lane its negatives, which go with the "
                "samples of the lane; leave one of them out"
            )

    def _check_shared_table(self, name: str, feature: SparseFeature) -> None:
        first = next(n for n in self.sparse if self.table_of(n) == self.table_of(name))
        # A row is of one id then.
        of_one = lists_ids(feature) or lists_ids(self.sparse[first])
        for key in ("rows", "dimension", "pooling", *(("ids", "vocabulary", "evict", "admit_after") if of_one else ())):
            here, there = getattr(feature, key), getattr(self.sparse[first], key)
            if key == "pooling" and "raw" not in (here, there) and self.holds_sequences(self.table_of(name)):
                continue  # the model pools, and each feature in its own way
            if here != there:
                raise InputError(
                    f"data.sparse.{name}.{key} is {here}, but data.sparse.{first}.{key} is {there} and both use "
                    f"table '{self.table_of(name)}'; make them equal or name another table"
                )

    def _check_labels(self) -> None:
        if not self.labels:
            raise InputError("data.labels is empty; name at least one column")
        if unknown := [name for name in self.numeric_labels if name not in self.labels]:
            raise InputError(f"data.numeric_labels names '{unknown[0]}', which data.labels does not; name it in both")
        for name, values in self.classes.items():
            self._check_classes(name, values)
        kinds = {"dense": self.dense, "sparse": self.sparse}
        others = {
            column: f"data.{kind}.{name}"
            for kind, features in kinds.items()
            for name, feature in features.items()
            for column in columns_of(name, feature)
        }
        others |= {
            column: f"data.sparse.{name}.weights" for name, one in self.sparse.items() for column in one.weight_columns
        }
        if self.weight:
            others[self.weight] = f"data.weight = '{self.weight}'"
        for label in self.labels:
            if self.labels.count(label) > 1:
                raise InputError(f"data.labels names '{label}' twice; name each label once")
            if label in others:
                raise InputError(f"data.labels names '{label}', which {others[label]} names too; name it in one place")

    def _check_classes(self, name: str, values: list[str | int]) -> None:
        key = f"data.classes.{name}"
        if name not in self.labels:
            raise InputError(
                f"{key} is set, but data.labels does not name '{name}'; name it there{nearest(name, self.labels)}"
            )
        if len({*values}) != len(values) or len(values) < 2 or len({type(value) for value in values}) > 1:
            raise InputError(f"{key} is {values}; name at least two values of one type, each once")
        if len(values) > 2 and name not in self.numeric_labels:
            raise InputError(f"{key} has {len(values)} values, but data.numeric_labels lacks '{name}'; name it there")

    def _check_catalogue(self) -> None:
        catalogue = self.catalogue
        given = sorted(catalogue.model_dump(exclude_defaults=True))
        if given and not catalogue.items:
            raise InputError(f"data.catalogue.{given[0]} is set, but data.catalogue.items is empty; name its files")
        if catalogue.items and self.managed_tables:
            raise InputError(
                f"data.catalogue.items is set, but table '{next(iter(self.managed_tables))}' has managed ids, which a "
                "catalogue does not take yet; use 'hash' or 'vocabulary'"
            )
        if catalogue.items and catalogue.id not in self.groups:
            raise InputError(
                f"data.catalogue.id is {catalogue.id!r}, which data.groups does not name; it has: "
                f"{some_of(self.groups)}"
            )
        if catalogue.hard_negatives is None and catalogue.hard_negatives_per_sample != 1:
            raise InputError(
                f"data.catalogue.hard_negatives_per_sample is {catalogue.hard_negatives_per_sample}, but "
                "data.catalogue.hard_negatives is unset; set both or none"
            )
        for key in ("exclude", "negatives_not_in"):
            for name in getattr(catalogue, key):
                self._check_excluded(f"data.catalogue.{key}", name)

    def _check_excluded(self, named_by: str, name: str) -> None:
        """Refuses a feature whose ids are no ids of items."""
        if name not in self.sparse:
            raise InputError(f"{named_by} names '{name}', which is no sparse feature{nearest(name, self.sparse)}")
        feature = self.sparse[name]
        for key in ("columns", "buckets", "transform", "lookup"):
            if (value := getattr(feature, key)) not in ([], "none", None):
                raise InputError(
                    f"{named_by} names '{name}', but data.sparse.{name}.{key} is {value!r}, which makes no "
                    "ids of items; name a feature that reads such ids as they are"
                )

    def rules(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Returns the keys that decide the values of the features, by name and by kind, `dense` or `sparse`."""
        kinds = {"dense": self.dense, "sparse": self.sparse}
        return {kind: {name: fixed_values(one) for name, one in named.items()} for kind, named in kinds.items()}

    @property
    def dense_columns(self) -> dict[str, range]:
        """The columns of each dense feature in the model's input: one of a number, `width` of a vector."""
        ends = [*itertools.accumulate((feature.width or 1 for feature in self.dense.values()), initial=0)]
        return {name: range(*ends[place : place + 2]) for place, name in enumerate(self.dense)}

    @property
    def dense_width(self) -> int:
        """The number of columns of all dense features."""
        return sum(feature.width or 1 for feature in self.dense.values())

    def table_of(self, feature: str) -> str:
        """Returns the name of the table that a sparse feature looks its ids up in."""
        return self.sparse[feature].table or feature

    def features_of_tables(self) -> dict[str, list[str]]:
        """Returns the sparse features that look their ids up in each table, in the order of the configuration."""
        features: dict[str, list[str]] = {}
        for name, feature in self.sparse.items():
            if feature.pooling != "raw":
                features.setdefault(self.table_of(name), []).append(name)
        return features

    def holds_sequences(self, table: str) -> bool:
        """Returns whether a table gives the embeddings of ids one by one, as one of its features is a sequence."""
        return any(self.table_of(name) == table for name in self.sequences)

    @property
    def pooled(self) -> list[str]:
        """The sparse features whose embeddings are pooled."""
        return [name for name, feature in self.sparse.items() if feature.pooling in ("sum", "mean")]

    @property
    def pooled_sequences(self) -> dict[str, str]:
        """The pooled features whose table serves sequences, too, each with its pooling."""
        of_sequences = {self.table_of(name) for name in self.sequences}
        return {name: self.sparse[name].pooling for name in self.pooled if self.table_of(name) in of_sequences}

    @property
    def sequences(self) -> dict[str, int]:
        """The sparse features that are sequences, each with its greatest length."""
        return {name: one.max_ids for name, one in self.sparse.items() if one.max_ids and one.pooling == "none"}

    @property
    def raw(self) -> dict[str, int]:
        """The sparse features without a table, which the model reads as they are, each with its greatest length."""
        return {name: one.max_ids for name, one in self.sparse.items() if one.max_ids and one.pooling == "raw"}

    @property
    def has_id_weights(self) -> bool:
        """Whether the ids of any feature have weights; the ids of all other features then weigh 1."""
        return any(feature.weights for feature in self.sparse.values())

    @property
    def managed_tables(self) -> dict[str, list[str]]:
        """The features of every table whose ids are managed."""
        tables = self.features_of_tables().items()
        return {table: names for table, names in tables if self.sparse[names[0]].ids == "managed"}

    def with_whole_lists(self) -> Self:
        """Returns the same without rules that compare lists with the row's own item: for a query that has none."""
        keep = {"without": None, "without_in": None}
        return self.model_copy(
            update={"sparse": {name: feature.model_copy(update=keep) for name, feature in self.sparse.items()}}
        )

    @property
    def costs(self) -> list[str]:
        """The columns with costs of samples."""
        return list(dict.fromkeys(one.cost for one in (self.balance, self.even_steps) if one.cost))

    @property
    def columns(self) -> list[str]:
        """The columns that training reads."""
        features = [*self.dense.items(), *self.sparse.items()]
        beside = (name for _, feature in features for name in columns_beside(feature).values())
        others = [name for name in (*beside, self.weight, self.catalogue.hard_negatives, *self.costs) if name]
        read = [column for name, feature in features for column in columns_of(name, feature)]
        found = list(dict.fromkeys([*read, *self.labels, *others, *self.groups]))
        needed = self.history.reads if self.history.columns.keys() & {*found} else []
        return list(dict.fromkeys([*found, *needed]))

    @property
    def columns_of_files(self) -> list[str]:
        """The columns that training reads from the files of the samples."""
        return [name for name in self.columns if name not in self.history.columns]
