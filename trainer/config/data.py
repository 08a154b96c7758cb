"""The data: its files, its columns, and how training reads them."""

from typing import Annotated, Any, Literal, Self

import pydantic

from trainer.config.catalogue import CatalogueConfig
from trainer.config.may_change import MayChange, fixed_values
from trainer.config.section import Section
from trainer.core.errors import InputError


class DenseFeature(Section):
    """One numeric column."""

    transform: Literal["none", "log1p", "log3"] = "none"
    """Applied first: log1p is log(x + 1), log3 is log(x + 3), the usual one for Criteo's counts."""
    mean: float = 0.0
    """Subtracted after the transform."""
    std: float = 1.0
    """Divides what is left: the feature is (transform(x) - mean) / std."""
    missing: float = 0.0
    """Replaces a null, before the transform."""


class SparseFeature(Section):
    """One column of ids: a single id per sample, or a list of them. A null is an empty bag."""

    rows: int = pydantic.Field(gt=0, lt=2**31)
    """Rows of the embedding table."""
    table: str | None = None
    """Name of the table; features that name the same one share it. Unset: the feature's own name."""
    dimension: pydantic.PositiveInt | None = None
    """Columns of the embedding table. Unset: model.embedding_dim."""
    pooling: Literal["sum", "mean", "none"] = "sum"
    """How the embeddings of a sample's ids become one; none leaves them a sequence, for models that read sequences."""
    max_ids: pydantic.PositiveInt | None = None
    """Length of a sequence at most, with pooling none only: of a longer list its last ids are kept, the newest."""
    ids: Literal["error", "modulo", "hash", "vocabulary", "managed"] = "error"
    """What becomes of an id: error refuses one outside [0, rows), modulo wraps it, hash mixes it, vocabulary looks it
    up in a list of ids, managed gives it a row when it is first seen. The last three take strings, too."""
    vocabulary: Annotated[str | None, MayChange] = None
    """For ids = "vocabulary": a file that data.vocabulary made, on any fsspec URL. A resume needs the same contents."""
    evict: Annotated[Literal["least_used", "least_recent"] | None, MayChange] = None
    """For ids = "managed": the id whose row a new one gets when all are in use. Unset: that of the run so far,
    least_used for a new run."""
    hotness: Annotated[pydantic.PositiveFloat, MayChange] = 1.0
    """Ids per sample to expect on average; only the planner uses it."""


class DataConfig(Section):
    """The data set and how it is read."""

    reader: str = "parquet"
    """Format of the files: parquet, or package.module:Reader for one of your own."""
    train: list[str] = []
    """Files, globs or directories, on any fsspec URL, to train on."""
    validation: Annotated[list[str], MayChange] = []
    """The same, for the evaluations during and after training."""
    test: Annotated[list[str], MayChange] = []
    """The same, for the evaluation after training."""
    dense: dict[str, DenseFeature] = {}
    """Dense features by column name."""
    sparse: dict[str, SparseFeature] = {}
    """Sparse features by column name."""
    labels: list[str] = ["label"]
    """Label columns, values in [0, 1] but for numeric_labels; without [tasks] the model has one output for each."""
    numeric_labels: list[str] = []
    """Those of labels that may have any finite value, such as a duration or the number of a class."""
    groups: list[str] = []
    """Columns of integers or strings by which losses and metrics group samples, such as users; no model sees them."""
    catalogue: CatalogueConfig = CatalogueConfig()
    weight: str | None = None
    """Column with the weight of each sample. Unset: every sample weighs 1."""
    global_batch_size: pydantic.PositiveInt = 8192
    """Samples per step, over all ranks."""
    lanes: Annotated[pydantic.PositiveInt | None, MayChange] = None
    """Equal parts of an epoch. Unset: the smallest multiple of the first run's number of ranks that is at least 8."""
    shuffle: bool = True
    """Permute the row groups every epoch and shuffle samples within windows. Evaluation never shuffles."""
    shuffle_window_rows: pydantic.PositiveInt = 65536
    """Samples of a lane that are shuffled among themselves, at most: whole row groups where they fit."""
    last_batch: Literal["keep", "drop"] = "keep"
    """The last, short batch of a training epoch: keep pads it with samples of weight zero, drop leaves it out."""
    accept_changed: Annotated[bool, MayChange] = False
    """Resume although the training files or the catalogue are not those of the checkpoint."""
    read_threads: Annotated[pydantic.PositiveInt, MayChange] = 2
    """Threads per rank that read and decode ahead of training."""
    prefetch_batches: Annotated[pydantic.PositiveInt, MayChange] = 8
    """Batches per rank that wait ready for training."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        self._check_labels()
        self._check_catalogue()
        for name, feature in self.dense.items():
            if feature.std <= 0:
                raise InputError(f"data.dense.{name}.std is {feature.std}; it must be greater than 0")
        for name, feature in self.sparse.items():
            _check_length(name, feature)
            if (feature.ids == "vocabulary") != (feature.vocabulary is not None):
                raise InputError(
                    f"data.sparse.{name}.ids is '{feature.ids}' and data.sparse.{name}.vocabulary is "
                    f"{'unset' if feature.vocabulary is None else 'set'}; set ids to 'vocabulary' and vocabulary to a "
                    "file of data.vocabulary, or neither"
                )
            _check_managed(name, feature)
            self._check_shared_table(name, feature)
        return self

    def _check_shared_table(self, name: str, feature: SparseFeature) -> None:
        first = next(n for n in self.sparse if self.table_of(n) == self.table_of(name))
        # A row is of one id then.
        of_one = not {"vocabulary", "managed"}.isdisjoint((feature.ids, self.sparse[first].ids))
        for key in ("rows", "dimension", "pooling", *(("ids", "vocabulary", "evict") if of_one else ())):
            here, there = getattr(feature, key), getattr(self.sparse[first], key)
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
        others = {name: f"data.{kind}.{name}" for kind in ("dense", "sparse") for name in getattr(self, kind)}
        if self.weight:
            others[self.weight] = f"data.weight = '{self.weight}'"
        for label in self.labels:
            if self.labels.count(label) > 1:
                raise InputError(f"data.labels names '{label}' twice; name each label once")
            if label in others:
                raise InputError(f"data.labels names '{label}', which {others[label]} names too; name it in one place")

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
                f"data.catalogue.id is {catalogue.id!r}, which data.groups does not name; it has: {self.groups}"
            )
        if catalogue.hard_negatives is None and catalogue.hard_negatives_per_sample != 1:
            raise InputError(
                f"data.catalogue.hard_negatives_per_sample is {catalogue.hard_negatives_per_sample}, but "
                "data.catalogue.hard_negatives is unset; set both or none"
            )

    def rules(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Returns the keys that decide the values of the features, by name and by kind, `dense` or `sparse`."""
        kinds = {"dense": self.dense, "sparse": self.sparse}
        return {kind: {name: fixed_values(one) for name, one in named.items()} for kind, named in kinds.items()}

    def table_of(self, feature: str) -> str:
        """Returns the name of the table that a sparse feature looks its ids up in."""
        return self.sparse[feature].table or feature

    def features_of_tables(self) -> dict[str, list[str]]:
        """Returns the sparse features that look their ids up in each table, in the order of the configuration."""
        features: dict[str, list[str]] = {}
        for name in self.sparse:
            features.setdefault(self.table_of(name), []).append(name)
        return features

    def holds_sequences(self, table: str) -> bool:
        """Returns whether a table's features are sequences; else all of them are pooled."""
        return self.features_of_tables()[table][0] in self.sequences

    @property
    def pooled(self) -> list[str]:
        """The sparse features whose embeddings are pooled."""
        return [name for name, feature in self.sparse.items() if feature.pooling != "none"]

    @property
    def sequences(self) -> dict[str, int]:
        """The sparse features that are sequences, each with its greatest length."""
        return {name: feature.max_ids for name, feature in self.sparse.items() if feature.max_ids is not None}

    @property
    def managed_tables(self) -> dict[str, list[str]]:
        """The features of every table whose ids are managed."""
        tables = self.features_of_tables().items()
        return {table: names for table, names in tables if self.sparse[names[0]].ids == "managed"}

    @property
    def columns(self) -> list[str]:
        """The columns that training reads."""
        others = [name for name in (self.weight, self.catalogue.hard_negatives) if name]
        return list(dict.fromkeys([*self.dense, *self.sparse, *self.labels, *others, *self.groups]))


def _check_length(name: str, feature: SparseFeature) -> None:
    if feature.pooling == "none" and feature.max_ids is None:
        raise InputError(
            f"data.sparse.{name}.pooling is 'none', but data.sparse.{name}.max_ids is unset; set the length that a "
            "sequence has at most, 1 for a single id"
        )
    if feature.pooling != "none" and feature.max_ids is not None:
        raise InputError(
            f"data.sparse.{name}.max_ids is {feature.max_ids}, but data.sparse.{name}.pooling is '{feature.pooling}', "
            "which takes all ids; set pooling to 'none' or leave max_ids out"
        )


def _check_managed(name: str, feature: SparseFeature) -> None:
    if feature.ids == "managed" and feature.rows < 2:
        raise InputError(f"data.sparse.{name}.rows is {feature.rows}; managed ids need one for unseen ids and one more")
    # Earlier runs wrote least_recent, then the default, to their config.toml whatever the ids.
    if feature.ids != "managed" and feature.evict == "least_used":
        raise InputError(
            f"data.sparse.{name}.evict is '{feature.evict}', but data.sparse.{name}.ids is '{feature.ids}', which "
            "evicts nothing; leave it out or set ids to 'managed'"
        )
