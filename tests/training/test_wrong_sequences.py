"""Sequences that cannot be, and models that cannot read them, are refused in one line that says what to do."""

import pytest


def sequence(feature, length, **keys):
    return {
        f"data__sparse__{feature}__{key}": value
        for key, value in ({"pooling": "none", "max_ids": length} | keys).items()
        if value is not None
    }


def model(name, **keys):
    return {"model": {"name": name, "embedding_dim": 16, "over_layers": [16], "target": "s0", "history": "s1"} | keys}


def times(feature, length, **keys):
    return sequence(feature, length, **({"pooling": "raw", "rows": 2**31 - 1} | keys))


READ = sequence("s0", 1) | sequence("s1", 5)
DIN = READ | model("din")
TIMED = READ | sequence("s2", 5) | times("s3", 5) | times("s4", 1)
HSTU = TIMED | model("hstu", actions=["s2"], history_times="s3", target_time="s4")
NEXT = {
    "data__dense": {},
    "data__groups": ["s0"],
    "data__catalogue": {"items": ["items.parquet"], "id": "s0"},
    "data__sparse": {
        "s0": {"rows": 100, "pooling": "none", "max_ids": 1},
        "s1": {"rows": 100, "pooling": "none", "max_ids": 5},
    },
    "tasks": {"next": {"label": "label", "loss": "in_batch_softmax", "group": "s0"}},
}


BPR = {"label": {"loss": "bpr", "group": "s0"}}
DRAWN = NEXT["data__catalogue"] | {"negatives": 4}


def finder(**keys):
    tree = model("hstu", item_features=["s0"], **keys)
    del tree["model"]["over_layers"]
    return tree


def event(**keys):
    """Returns the model of one token for each event."""
    tree = model("dlrm_hstu", **keys)["model"]
    return {"model": {key: value for key, value in tree.items() if key != "over_layers" and value is not None}}


WITHOUT = {
    "data__sparse": {"s0": {"rows": 100, "pooling": "none", "max_ids": 1}},
    "model": {"name": "mind", "embedding_dim": 16, "target": "s0", "item_features": ["s0"]},
}
ACTED, OF_ITEMS = READ | times("s2", 5, rows=8), READ | sequence("s2", 5) | sequence("s3", 1)
SHARED = {f"data__sparse__s2__{key}": value for key, value in {"rows": 100, "table": "s0", "pooling": "mean"}.items()}
CUSTOM = READ | {"model": {"name": "custom:SumOfSequences", "embedding_dim": 16}}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (sequence("s0", None), "max_ids is unset; set the length that a sequence has at most, 1 for a single id"),
        (sequence("s0", 0), "data.sparse.s0.max_ids is 0: input should be greater than 0"),
        (
            DIN | {"data__sparse__s2__table": "s0"},
            "data.sparse.s2.rows is 102, but data.sparse.s0.rows is 100 and both use table 's0'; make them equal or",
        ),
        (
            DIN | times("s2", 5) | {"data__sparse__s0__table": "s2", "data__sparse__s0__rows": 2**31 - 1},
            "data.sparse.s2.pooling is raw, but data.sparse.s0.pooling is none and both use table 's2'; make them",
        ),
        (
            CUSTOM | SHARED,
            "data.sparse.s2.pooling is 'mean', and its table 's0' has sequences, too, but model.name is "
            "'custom:SumOfSequences', a model that does not pool these; keep ModelInputs.pool_sequences() in it",
        ),
        (
            DIN | sequence("s1", 5, dimension=8),
            "data.sparse.s1 has the dimension 8, but data.sparse.s0 has 16; features of pooling 'none' must all have",
        ),
        (
            READ,
            "data.sparse.s0.pooling is 'none', but model.name 'dlrm' does not read 's0'; use it with model.name din,",
        ),
        (DIN | sequence("s2", 5), "model.name 'din' does not read 's2'; use it as model.target or model.history"),
        (
            READ | {"model": {"name": "din", "embedding_dim": 16, "over_layers": [16]}},
            "model.target is unset, which model.name 'din' needs",
        ),
        (
            DIN | model("sasrec", history="s11"),
            "model.history is 's11', which is no sparse feature; did you mean 's1'?",
        ),
        (
            DIN | model("din", history="s3"),
            "model.history is 's3', but data.sparse.s3.pooling is 'sum'; set it to 'none'",
        ),
        (DIN | model("din", history="s0"), "model.history and model.target are both 's0'; name two features"),
        (DIN | sequence("s0", 2), "data.sparse.s0.max_ids is 2, but model.target is 's0', which is one item"),
        (
            DIN | model("sasrec", attention_heads=3),
            "model.attention_heads is 3, which does not divide the dimension 16",
        ),
        (DIN | model("din", attention_blocks=2), "model.attention_blocks is 2, which model.name 'din' does not use"),
        (
            DIN | model("dlrm"),
            "model.target is 's0', which model.name 'dlrm' does not use; leave it out, or use din, sasrec",
        ),
        (
            DIN | {"planner__mode": "data_parallel", "optimizer__sparse": {"name": "adam", "learning_rate": 0.1}},
            "planner.mode has data_parallel, which table 's0' cannot have: its optimizer is 'adam'; use one of sgd, ad",
        ),
        (
            DIN | {"planner__tables": {"s1": {"sharding_types": ["grid_shard"]}}},
            "planner.tables.s1.sharding_types has grid_shard, which table 's1' cannot have: data.sparse.s1.pooling is "
            "'none'; sequences are sharded by data_parallel, table_wise, row_wise, column_wise only, use one of these",
        ),
        (DIN | {"comms__forward": "int8"}, "'s0' sends sequences of 16 columns, which is no multiple of 32"),
        (
            HSTU | model("hstu", actions=["s2"], history_times="s3"),
            "model.history_times is 's3' and model.target_time is None; set both or none",
        ),
        (
            HSTU | sequence("s2", 4),
            "data.sparse.s2.max_ids is 4, but model.actions names 's2'; set it to 5",
        ),
        (
            HSTU | sequence("s3", 5),
            "data.sparse.s3.pooling is 'none', but model.history_times names 's3'; set it to 'raw'",
        ),
        (
            HSTU | {"data__sparse__s2__keep": "first"},
            "data.sparse.s2.keep is 'first', but model.actions names 's2'; set it to 'last'",
        ),
        (
            HSTU | {"data__sparse__s1__times": "s3", "data__sparse__s1__before": "s4"},
            "data.sparse.s2.times is None, but model.actions names 's2'; set it to 's3'",
        ),
        (
            HSTU | {"data__sparse__s2__times": "s3", "data__sparse__s2__before": "s4"},
            "data.sparse.s2.times is 's3', but model.actions names 's2'; leave it out",
        ),
        (
            HSTU | {"data__sparse__s1__times": "s3"},
            "data.sparse.s1.times is 's3' and data.sparse.s1.before is None; name a column for both or none",
        ),
        (
            HSTU | {"data__sparse__s1__weights": "w"},
            "data.sparse.s1.weights is 'w', but its pooling is 'none' and model.actions lacks 's1'; name it there, set",
        ),
        (
            HSTU | {"data__sparse__s3__weights": "w"},
            "data.sparse.s3.weights is 'w', but data.sparse.s3.pooling is 'raw', without embeddings; leave weights out",
        ),
        (
            HSTU | {"data__sparse__s1__within_seconds": 60},
            "data.sparse.s1.within_seconds is 60, but data.sparse.s1.times is unset; name the column of times",
        ),
        (
            HSTU | model("hstu", actions=["s22"], history_times="s3", target_time="s4"),
            "model.actions names 's22', which is no sparse feature; did you mean 's2'?",
        ),
        (
            HSTU | {"model": {"name": "hstu", "embedding_dim": 16, "target": "s0", "actions": ["s2"]}},
            "model.actions names 's2', but model.history is unset; set it",
        ),
        (
            TIMED | model("hstu", actions=["s2"]),
            "data.sparse.s3.pooling is 'raw', but model.name 'hstu' does not read 's3'; use it with model.name bst, "
            "hstu, dlrm_hstu or recency as",
        ),
        (
            TIMED | model("sasrec", actions=["s2"]),
            "model.actions is ['s2'], which model.name 'sasrec' does not use; leave it out, or use hstu",
        ),
        (
            HSTU | {"data__sparse__s3": {"rows": 9, "pooling": "raw"}},
            "data.sparse.s3.pooling is 'raw', but data.sparse.s3.max_ids is unset; set the length",
        ),
        (
            HSTU | {"data__sparse__s3__ids": "hash"},
            "data.sparse.s3.ids is 'hash', but data.sparse.s3.pooling is 'raw', which takes ids as they are and has",
        ),
        (
            HSTU | {"data__sparse__s3__table": "s1"},
            "data.sparse.s3.table is 's1', but data.sparse.s3.pooling is 'raw'",
        ),
        (
            NEXT | finder() | {"tasks": {"next": {"label": "label"}}},
            "tasks.next.output is 'logit', but model.item_features is ['s0'], with which model.name 'hstu' is to find",
        ),
        (
            NEXT | finder() | {"model__item_features": []},
            "tasks.next.output is 'vectors', but model.item_features is [], with which model.name 'hstu' is to predict",
        ),
        (
            NEXT | finder(every_position=True),
            "model.every_position is true, but tasks.next.loss is 'in_batch_softmax'; use 'sampled_softmax'",
        ),
        (
            HSTU | {"model__every_position": True},
            "model.every_position is true, but model.item_features is empty; set it",
        ),
        (
            NEXT | finder(target="s1", history="s0"),
            "data.sparse.s1.max_ids is 5, but model.target is 's1', which is one item; set it to 1",
        ),
        (
            NEXT | finder() | {"model__item_features": ["s1"]},
            "model.item_features is ['s1'], but model.name 'hstu' finds items by model.target alone; set it to ['s0']",
        ),
        (
            NEXT | finder() | {"data__dense": {"d0": {}}},
            "model.item_features is set, but model.name 'hstu' does not read 'd0' to find the next item",
        ),
        (
            READ | model("mind"),
            "model.item_features is [], but model.name 'mind' only finds the next item; set it to [",
        ),
        (
            NEXT | WITHOUT,
            "model.item_features is set, but model.name 'mind' needs model.history to find the next item",
        ),
        (
            NEXT | model("mind", item_features=["s0"]) | {"tasks": {"next": {"label": "label"}}},
            "tasks.next.output is 'logit', but model.item_features is ['s0'], with which model.name 'mind' is to find",
        ),
        (NEXT | model("mind", item_features=["s0"], interests=0), "model.interests is 0: input should be greater than"),
        (
            NEXT | model("mind", item_features=["s0"], every_position=True),
            "model.every_position is True, which model.name 'mind' does not use; leave it out, or use sasrec, hstu",
        ),
        (
            DIN | {"model__name": "bst", "model__attention_heads": 3},
            "model.attention_heads is 3, which does not divide",
        ),
        (
            DIN | {"data__balance": {"features": ["s11"]}},
            "data.balance.features names 's11', which is no sparse feature; did you mean 's1'?",
        ),
        (DIN | {"data__balance": {"squares": 0.1}}, "data.balance.squares is 0.1, but data.balance.features is empty"),
        (
            DIN | {"data__even_steps": {"features": ["s11"]}},
            "data.even_steps.features names 's11', which is no sparse feature; did you mean 's1'?",
        ),
        (
            DIN | {"data__even_steps": {"squares": 0.1}},
            "data.even_steps.squares is 0.1, but data.even_steps.features is empty; name features with lists",
        ),
        (
            DIN | {"data__even_steps": {"features": ["s1"]}, "data__shuffle": False},
            "data.even_steps.features is ['s1'], but data.shuffle is false, which keeps the order of the files",
        ),
        (
            DIN | {"data__balance": {"features": ["s1"]}, "data__groups": ["s0"], "tasks": BPR},
            "tasks.label.loss is 'bpr', which compares the samples of a lane, but data.balance.features is",
        ),
        (
            NEXT | finder() | {"data__balance": {"features": ["s1"]}, "data__catalogue": DRAWN},
            "data.balance.features is ['s1'], but data.catalogue gives each lane its negatives, which go with",
        ),
        (
            READ | model("dlrm_hstu"),
            "model.over_layers is [16], which model.name 'dlrm_hstu' does not use; leave it out",
        ),
        (
            READ | sequence("s2", 5) | event(actions=["s2"]),
            "data.sparse.s2.pooling is 'none', but model.actions names 's2'; set it to 'raw'",
        ),
        (
            ACTED | times("s3", 5, rows=8) | event(actions=["s2", "s3"]),
            "model.actions is ['s2', 's3'], but model.name 'dlrm_hstu' reads one feature with the sum of bits",
        ),
        (
            ACTED | event(actions=["s2"], action_bits=2),
            "model.action_bits is 2, for numbers below 4, but data.sparse.s2.rows is 8; set one of them",
        ),
        (
            OF_ITEMS | event(history_attributes=["s2"]),
            "model.history_attributes is ['s2'] and model.target_attributes is []; name the same attributes in both",
        ),
        (
            OF_ITEMS | event(history_attributes=["s2"], target_attributes=["s3"]),
            "but 's2' has the table 's2' and 's3' the table 's3'; name attributes of one table at the same place",
        ),
        (
            OF_ITEMS | event(history_attributes=["s3"], target_attributes=["s2"]),
            "data.sparse.s3.max_ids is 1, but model.history_attributes names 's3'; set it to 5",
        ),
        (
            OF_ITEMS | event(context=["s2"]),
            "data.sparse.s2.max_ids is 5, but model.context names 's2'; set it to 1",
        ),
        (READ | event(context=["s00"]), "model.context names 's00', which is no sparse feature; did you mean 's0'?"),
        (
            OF_ITEMS | event(history=None, history_attributes=["s2"], target_attributes=["s3"]),
            "model.history_attributes names 's2', but model.history is unset; set it",
        ),
        (READ | event(attention_divisor=0), "model.attention_divisor is 0: input should be greater than 0"),
        (READ | event(attention_block=0), "model.attention_block is 0: input should be greater than 0"),
        (READ | event(attention_heads=3), "model.attention_heads is 3, which does not divide the dimension 16 of"),
        (
            READ | event(item_features=["s0"]),
            "model.item_features is ['s0'], which model.name 'dlrm_hstu' does not use; leave it out, or use sasrec",
        ),
        (
            READ | sequence("s3", 1) | model("hstu", context=["s3"]),
            "model.context is ['s3'], which model.name 'hstu' does not use; leave it out, or use dlrm_hstu",
        ),
        (
            READ | event(normalization="batch"),
            "model.normalization is 'batch', but model.name 'dlrm_hstu' has no layer",
        ),
        (
            DIN | {"train__recompute": True, "model__normalization": "batch"},
            "model.normalization is 'batch', whose running means would move twice in a step, but train.recompute",
        ),
        (CUSTOM | {"model__name": "custom:Renamed"}, "the model keeps ModelInputs.sequences as 'unpooled'"),
    ],
)
def test_wrong_sequences_are_explained(refusal, changes, says):
    assert says in refusal(changes)
