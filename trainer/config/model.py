"""Configuration of the model."""

from typing import Any, Literal, Self

import pydantic

from trainer.core.errors import InputError
from trainer.core.section import Section, flat

# The names of MODELS in trainer/models, which cannot be imported without torch, each with the keys that not all of
# them use. dlrm takes the keys of dlrm_dcn, as one configuration has served both.
USED_BY = {
    "dlrm": ("dense_layers", "over_layers", "over_embeddings", "cross_layers", "cross_rank"),
    "dlrm_dcn": ("dense_layers", "over_layers", "cross_layers", "cross_rank"),
    "deepfm": ("over_layers", "first_order_columns"),
    "wide_deep": ("over_layers", "first_order_columns"),
    "xdeepfm": ("over_layers", "first_order_columns", "cin_layers"),
    "autoint": ("over_layers", "attention_blocks", "attention_heads", "attention_dim"),
    "masknet": ("over_layers", "mask_layers", "mask_order", "gates.width"),
    "finalmlp": ("over_layers", "second_layers", "fusion_heads", "gates.width", "gates.first", "gates.second"),
    "wukong": (
        *("over_layers", "wukong.layers", "wukong.linear_vectors", "wukong.product_vectors", "wukong.rank"),
        "wukong.hidden_layers",
    ),
    "mmoe": ("experts.shared", "experts.layers", "tower_layers"),
    "ple": ("experts.shared", "experts.per_task", "experts.levels", "experts.layers", "tower_layers"),
    "esmm": ("tower_layers",),
    "din": ("over_layers", "history", "target", "inner_product", "attention_layers"),
    "sasrec": (
        *("over_layers", "history", "target", "attention_blocks", "attention_heads"),
        *("item_features", "normalize", "item_bias", "every_position"),
    ),
    "bst": (
        *("over_layers", "history", "target", "history_times", "target_time", "attention_blocks", "attention_heads"),
    ),
    "hstu": (
        *("over_layers", "history", "target", "attention_blocks", "attention_heads"),
        *("actions", "history_times", "target_time", "attention_block"),
        *("item_features", "normalize", "item_bias", "every_position"),
    ),
    "dlrm_hstu": (
        *("history", "target", "history_attributes", "target_attributes", "actions", "action_bits", "context"),
        *("history_times", "target_time", "attention_blocks", "attention_heads"),
        *("attention_block", "attention_divisor"),
    ),
    "recency": (
        *("over_layers", "history", "target", "history_times", "target_time"),
        *("item_features", "normalize", "item_bias"),
    ),
    "mind": (
        *("over_layers", "history", "target", "interests", "routing_rounds"),
        *("item_features", "normalize", "item_bias"),
    ),
    "dbmtl": ("over_layers", "tower_layers", "relation_layers", "dependencies"),
    "pepnet": ("tower_layers", "gates.width", "gates.domain", "gates.personal"),
    "two_tower": ("item_features", "tower_layers", "vector_dim", "normalize", "item_bias"),
}
ESMM = ("ctr", "ctcvr", "cvr")  # cvr is part of ctcvr, and need not be asked for
OUTPUTS = {name: ("logit", "value", "log_value") for name in USED_BY} | {
    "esmm": ("log_probability",),
    "two_tower": ("vectors",),
}
RETRIEVES = ("sasrec", "hstu", "recency", "mind")  # what comes next, if model.item_features are given
OUTPUTS |= dict.fromkeys(RETRIEVES, ("logit", "value", "log_value", "vectors")) | {"mind": ("vectors",)}
CHOSEN = {key for keys in USED_BY.values() for key in keys} | {"arguments"}


class ExpertsConfig(Section):
    """The experts of mmoe and ple, networks whose outputs the gate of each task mixes."""

    shared: pydantic.PositiveInt = 4
    """Experts that all tasks share; of ple, on each level."""
    per_task: pydantic.PositiveInt = 2
    """Experts of ple that belong to one task, on each level."""
    levels: pydantic.PositiveInt = 2
    """Levels of ple; each mixes the outputs of the level before."""
    layers: list[pydantic.PositiveInt] = pydantic.Field(default=[256, 128], min_length=1)
    """Layers of each expert."""


class GatesConfig(Section):
    """The gates of masknet, finalmlp and pepnet: networks of one hidden layer, which multiply columns."""

    width: pydantic.PositiveInt = 128
    """Columns of the hidden layer of each gate."""
    first: list[str] = []
    """Dense and sparse features that the gate of finalmlp's first stream sees, such as those of the user. Empty: the
    gate weighs the columns alike for all samples."""
    second: list[str] = []
    """The same of the second stream, such as those of the item."""
    domain: list[str] = []
    """Features of the domain, such as the page, by which pepnet scales all features. Empty: it does not scale them."""
    personal: list[str] = []
    """Features, such as user and item, by which pepnet scales the hidden layers of each task's tower. Empty: it does
    not scale them."""


class WukongConfig(Section):
    """The layers of wukong, each a factorization machine beside linear combinations of the vectors."""

    layers: pydantic.PositiveInt = 2
    """Layers; each doubles the order of the products."""
    linear_vectors: pydantic.PositiveInt = 16
    """Vectors of each layer that are linear combinations of the vectors before."""
    product_vectors: pydantic.PositiveInt = 16
    """Vectors of each layer that are made of products."""
    rank: pydantic.PositiveInt = 16
    """Columns that the matrix of inner products is compressed to."""
    hidden_layers: list[pydantic.PositiveInt] = [256]
    """Hidden layers over the products."""


class TableInit(Section):
    """The distribution of the initial weights of tables."""

    distribution: Literal["uniform", "normal", "truncated_normal"] | None = None
    """uniform, normal, or truncated_normal, a normal distribution without values beyond two std from the mean. Unset:
    of one table, as for all tables; of all tables, uniform as model.table_init has it."""
    low: float | None = None
    """Lower bound of uniform."""
    high: float | None = None
    """Upper bound of uniform."""
    mean: float = 0.0
    """Mean of normal and truncated_normal."""
    std: pydantic.PositiveFloat | None = None
    """Standard deviation of normal and, before it is truncated, of truncated_normal."""

    @pydantic.model_validator(mode="after")
    def _belongs_together(self) -> Self:
        needed = {None: set(), "uniform": {"low", "high"}}.get(self.distribution, {"std"})
        given = self.model_dump(exclude_defaults=True, exclude={"distribution"})
        allowed = needed | ({"mean"} if "std" in needed else set())
        if unused := sorted(given.keys() - allowed):
            where = "unset" if self.distribution is None else f"'{self.distribution}', which does not use it"
            raise InputError(
                f"{{key}}.{unused[0]} is {given[unused[0]]}, but {{key}}.distribution is {where}; leave one of them out"
            )
        if missing := sorted(needed - given.keys()):
            raise InputError(
                f"{{key}}.distribution is '{self.distribution}', but {{key}}.{missing[0]} is unset; set it"
            )
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise InputError(f"{{key}}.low is {self.low} and {{key}}.high is {self.high}; low must be the lower")
        return self


Precision = Literal["fp32", "fp16"]


class TableConfig(Section):
    """The weights of one table, by table name; unset keys are as for all tables."""

    precision: Precision | None = None
    """Precision of the weights. Unset: model.table_precision."""
    vectors: str | None = None
    """Vectors that rows of a new run begin with, on any fsspec URL: Parquet files with the columns vector and id or
    row, such as embed --table writes, or a .npy file with all rows in order. Other rows begin by init."""
    init: TableInit = TableInit()


class ModelConfig(Section):
    """The model and its loss."""

    name: str = "dlrm"
    """dlrm, dlrm_dcn, deepfm, wide_deep, xdeepfm, autoint, masknet, finalmlp, wukong, mmoe, ple, esmm, dbmtl, pepnet,
    din, sasrec, bst, hstu, dlrm_hstu, recency, mind, two_tower (docs/guides/models.md), or package.module:function for
    a model of your own (see docs/tutorials/your_model.md)."""
    loss: str = "binary"
    """Without [tasks], the loss of every label (docs/guides/tasks.md), or package.module:function over all of them."""
    task_weighting: Literal["fixed", "uncertainty", "pareto"] = "fixed"
    """How the losses of several tasks are combined: by their weights, by learned variances, or by their gradients."""
    embedding_dim: pydantic.PositiveInt = 64
    """Columns of every table that does not set its own; dlrm, dlrm_dcn, deepfm, xdeepfm, autoint, masknet, finalmlp and
    wukong need the same for all tables."""
    table_precision: Precision = "fp32"
    """Precision of the tables' weights; fp16 halves their memory. Their optimizer's state stays float32. Of single
    tables: model.tables.NAME.precision."""
    table_init: pydantic.PositiveFloat | None = None
    """Initial weights of tables are uniform between minus this and this. Unset: 1/sqrt(rows) of each table. A small
    bound, such as 0.001, has ids that were never trained answer almost as zeros. Other distributions: [model.init]."""
    init: TableInit = TableInit()
    tables: dict[str, TableConfig] = {}
    """Initial weights and precision of single tables, by table name."""
    dense_layers: list[pydantic.PositiveInt] = [512, 256]
    """Hidden layers of dlrm and dlrm_dcn over the dense features; a layer of embedding_dim follows. Without dense
    features: unused, a learned vector takes their place."""
    over_layers: list[pydantic.PositiveInt] = [512, 512, 256]
    """Hidden layers over all features or, in dlrm and dlrm_dcn, over their interactions; a layer with an output per
    label follows. In dbmtl, the layers that all tasks share; in autoint, the part beside attention, none if empty; in
    masknet and wukong, over the outputs of the blocks; in finalmlp, the first stream; in mind, over each interest and
    the user."""
    over_embeddings: bool = False
    """Let the over_layers of dlrm see the embeddings, too, not only their inner products."""
    first_order_columns: pydantic.NonNegativeInt = 0
    """Columns of each table that deepfm, wide_deep and xdeepfm keep for the linear part, as weights of its own for each
    id. 0: the linear part sees the columns that the other parts see."""
    dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Share of the values that each hidden layer, and each block of autoint, masknet, sasrec, bst, hstu and dlrm_hstu,
    loses at random in training; in recency, of the items of the history."""
    activation: Literal["relu", "gelu", "silu", "leaky_relu"] = "relu"
    """The function after each hidden layer, and each block of autoint and masknet; hstu has SiLU in its units, whatever
    is set here."""
    normalization: Literal["none", "batch", "layer"] = "none"
    """What each hidden layer is normalized over, before its activation: nothing, the samples of the global batch, or
    its columns. With batch and Adam, set optimizer.dense.eps to 1e-6, or rounding decides on some weights. Not in the
    attention of din and autoint; masknet, wukong, sasrec, bst and hstu always normalize their blocks over columns."""
    cross_layers: pydantic.PositiveInt = 3
    """Cross layers of dlrm_dcn."""
    cross_rank: pydantic.PositiveInt = 512
    """Rank of the low-rank cross layers of dlrm_dcn."""
    cin_layers: list[pydantic.PositiveInt] = pydantic.Field(default=[128, 128], min_length=1)
    """Vectors of each layer of xdeepfm's compressed interaction network."""
    mask_layers: list[pydantic.PositiveInt] = pydantic.Field(default=[128, 128, 128], min_length=1)
    """Columns of each MaskBlock of masknet."""
    mask_order: Literal["parallel", "serial"] = "parallel"
    """Whether the MaskBlocks of masknet stand side by side, or each sees the output of the block before."""
    second_layers: list[pydantic.PositiveInt] = []
    """Hidden layers of finalmlp's second stream. Empty: those of the first, over_layers."""
    fusion_heads: pydantic.PositiveInt = 1
    """Parts in which finalmlp multiplies the last layers of its streams; they must divide the columns of both."""
    gates: GatesConfig = GatesConfig()
    wukong: WukongConfig = WukongConfig()
    tower_layers: list[pydantic.PositiveInt] = [64]
    """Hidden layers of each task's tower in mmoe, ple, esmm, dbmtl and pepnet, and of both towers of two_tower."""
    item_features: list[str] = []
    """The dense and sparse features of the item, in two_tower and in data.catalogue; all others are the query's. With
    model.target alone, sasrec, hstu and recency find the next item instead of predicting the labels of the target; mind
    always does."""
    vector_dim: pydantic.PositiveInt = 64
    """Dimensions of the vectors of two_tower."""
    normalize: bool = True
    """Scale the vectors of query and item to a length of 1, so that their inner product is a cosine."""
    item_bias: bool = False
    """Let the first column of an item's vector be its bias, a learned popularity: in the query's vector it is 1."""
    experts: ExpertsConfig = ExpertsConfig()
    dependencies: dict[str, list[str]] = {}
    """In dbmtl, the predictions that a prediction depends on, as in `buy = ["click"]`."""
    relation_layers: list[pydantic.PositiveInt] = [32]
    """Hidden layers of dbmtl over a task's tower and the tasks that it depends on."""
    target: str | None = None
    """The sparse feature, of pooling none, with the item that din, sasrec, bst, hstu, dlrm_hstu and recency predict
    the labels of, and mind finds."""
    history: str | None = None
    """The sparse feature, of pooling none, with a user's earlier items for din, sasrec, bst, hstu, dlrm_hstu,
    recency and mind. Unset: the same network without a history, to measure what the history adds."""
    actions: list[str] = []
    """Sparse features, of pooling none, with what the user did to each item of hstu's history, such as a rating; their
    weights, such as the seconds that the user spent, multiply the embeddings. In dlrm_hstu, one feature of pooling raw
    whose numbers are sums of bits, one for each kind of action."""
    action_bits: int = pydantic.Field(default=3, ge=1, le=31)
    """Bits of the actions of dlrm_hstu, such as 3 for the numbers up to 7: heard is 1, liked 2 and skipped 4."""
    history_attributes: list[str] = []
    """Sparse features, of pooling none, with attributes of each item of dlrm_hstu's history, such as its artist."""
    target_attributes: list[str] = []
    """The same attributes of the target, in the same order and tables."""
    context: list[str] = []
    """Sparse features, of pooling none and max_ids 1, that dlrm_hstu sees before the history, such as the user."""
    history_times: str | None = None
    """The sparse feature, of pooling raw, with the second of each item of the history of bst, hstu, dlrm_hstu
    and recency."""
    target_time: str | None = None
    """The sparse feature, of pooling raw, with the second of the target, or for which the next item is to be found."""
    inner_product: bool = False
    """Let the history of din reach the logits by an inner product with the target alone, not through over_layers,
    which memorize the histories of a small data set."""
    attention_layers: list[pydantic.PositiveInt] = [32]
    """Hidden layers of din over each item of the history and the target."""
    attention_blocks: pydantic.PositiveInt = 1
    """Self-attention blocks of sasrec, bst and autoint, and units of hstu and dlrm_hstu."""
    attention_heads: pydantic.PositiveInt = 1
    """Heads of each block of sasrec, bst, hstu and dlrm_hstu, where they must divide the columns of the table, and of
    autoint, where they must divide attention_dim."""
    attention_dim: pydantic.PositiveInt = 64
    """Columns of each feature after a block of autoint, all heads together."""
    attention_block: pydantic.PositiveInt = 256
    """Tokens whose attention hstu and dlrm_hstu compute at once. Larger blocks need more memory, and another size
    rounds differently."""
    attention_divisor: pydantic.PositiveFloat = 4096.0
    """What the weights of dlrm_hstu's attention are divided by: a constant, such as the most tokens of a sample."""
    interests: pydantic.PositiveInt = 4
    """The most vectors that a user has in mind: of n items, the logarithm of n to the base 2. An item's score is its
    inner product with the closest one."""
    routing_rounds: pydantic.PositiveInt = 3
    """Rounds in which mind shares the items of a history out among the interests."""
    every_position: bool = False
    """Train sasrec and hstu, where they find the next item, at every position of a history and not only at its end."""
    arguments: dict[str, Any] = {}
    """Values for a model of your own."""

    @property
    def retrieves(self) -> bool:
        """Whether a model of sequences finds the next item."""
        return self.name in RETRIEVES and bool(self.item_features)

    def init_of(self, table: str) -> TableInit:
        """Returns the distribution of a table's initial weights; without any: uniform within 1/sqrt(rows)."""
        own = self.tables.get(table, TableConfig()).init
        bound = self.table_init
        for_all = self.init if bound is None else TableInit(distribution="uniform", low=-bound, high=bound)
        return own if own.distribution else for_all

    def precision_of(self, table: str) -> Precision:
        """Returns the precision of a table's weights."""
        return self.tables.get(table, TableConfig()).precision or self.table_precision

    def precision_key(self, table: str) -> str:
        """Returns the key that decides on the precision of a table."""
        own = self.tables.get(table, TableConfig()).precision
        return f"model.tables.{table}.precision" if own else "model.table_precision"

    @pydantic.model_validator(mode="after")
    def _begins_in_one_way(self) -> Self:
        if self.table_init is not None and self.init.distribution:
            raise InputError(
                f"model.table_init is {self.table_init} and model.init.distribution is '{self.init.distribution}'; set "
                "one of them"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _keys_are_used(self) -> Self:
        given = flat(self.model_dump(exclude_defaults=True))
        for path, value in given.items():
            key = next((key for key in (".".join(path), path[0]) if key in CHOSEN), None)
            if key and self.name in USED_BY and key not in USED_BY[self.name]:
                users = ", ".join(name for name, keys in USED_BY.items() if key in keys) or "package.module:function"
                raise InputError(
                    f"model.{'.'.join(path)} is {value!r}, which model.name '{self.name}' does not use; leave it out, "
                    f"or use {users}"
                )
        return self
