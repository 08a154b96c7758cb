"""The exported module: takes raw columns, returns outputs by name."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from torchx_recsys.apps.export.features import Features, IdLists, Ids, SingleIds
from torchx_recsys.apps.export.rules import Buckets, IdRule, ListedIds, offset_in_torch, torch_rule
from trainer.config.data import DataConfig
from trainer.config.features import DenseFeature, SparseFeature
from trainer.models.embeddings import name_in_model
from trainer.models.outputs import ModelOutput, compute_outputs
from trainer.rules.dense import dense_in_torch
from trainer.rules.derived_ids import crossed_in_torch, inputs_of_cross, part_of_time
from trainer.rules.expression import evaluated, inputs_of_expression


def names_of_list(column: str) -> tuple[str, str]:
    """Returns the names of the two tensors of a column of lists: all ids, and the number of ids of each sample."""
    return f"{column}.values", f"{column}.lengths"


def name_of_presence(column: str) -> str:
    """Returns the name of the tensor that marks samples with a single id or a time: no number can mean missing."""
    return f"{column}.present"


def name_of_weights(column: str) -> str:
    """Returns the name of the tensor of the weights of a column's ids."""
    return f"{column}.weights"


class Rules(nn.Module):
    """The data rules: turns raw columns into a model's inputs.

    Args:
        data: The columns and their rules.
        lists: The sparse features that are lists of ids.
        unsigned: The sparse features whose ids have no sign.
        listed: The listed ids, by table.
    """

    def __init__(
        self, data: DataConfig, lists: Collection[str], unsigned: Collection[str], listed: Mapping[str, ListedIds]
    ) -> None:
        super().__init__()
        self.ids = nn.ModuleDict({name_in_model(table): ids for table, ids in listed.items()})
        edges = {name: feature.buckets for name, feature in data.sparse.items() if feature.buckets}
        self.buckets = nn.ModuleDict({name_in_model(name): Buckets(one) for name, one in edges.items()})
        self._data, self._lists = data, lists
        self._rules: dict[str, IdRule] = {
            name: torch_rule(name, feature, name in unsigned, listed.get(data.table_of(name)))
            for name, feature in data.sparse.items()
        }

    def forward(self, columns: dict[str, Tensor]) -> tuple[Tensor, Features]:
        """Returns the dense features, `[B, D]`, and the rows of ids by sparse feature.

        Args:
            columns: By feature. Numbers `[B]` and vectors `[B, width]` float32, NaN where missing; single ids, and
                times in seconds since 1970, `[B]` int64, with the tensor of `name_of_presence`, `[B]` bool; lists as
                the two tensors of `names_of_list`, `[N]` and `[B]` int64; weights as the tensor of `name_of_weights`,
                `[N]` or `[B]` float32; of crosses, the ids of each column; of expressions, the numbers of each column,
                float64.
        """
        dense = [self._number(name, feature, columns) for name, feature in self._data.dense.items()]
        sparse = {name: self._ids(name, columns) for name in self._data.sparse}
        samples = dense[0].shape[0] if dense else next(iter(sparse.values())).samples
        columns_of_dense = [one if one.dim() == 2 else one[:, None] for one in dense]
        found = torch.cat(columns_of_dense, dim=1) if dense else torch.zeros((samples, 0))
        return found, Features(sparse, samples)

    def _number(self, name: str, feature: DenseFeature, columns: dict[str, Tensor]) -> Tensor:
        """Returns a dense feature, `[B]` float32, or `[B, width]` of vectors."""
        if not feature.expression:
            return dense_in_torch(columns[name], _present(name, columns), feature)
        given = {column: columns[one] for column, one in inputs_of_expression(name, feature.expression).items()}
        found = evaluated(feature.expression, given, torch).float()
        return dense_in_torch(found, found.isfinite(), feature)

    def _ids(self, name: str, columns: dict[str, Tensor]) -> Ids:
        rule, feature = self._rules[name], self._data.sparse[name]
        weights = columns[name_of_weights(name)] if feature.weights else None
        if name in self._lists:
            values, lengths = names_of_list(name)
            return IdLists(rule(columns[values]), columns[lengths], feature.max_ids, feature.keep == "first", weights)
        ids, present = self._single(name, feature, columns)
        return SingleIds(rule(torch.where(present, ids, -offset_in_torch(name, feature))), present, weights)

    def _single(self, name: str, feature: SparseFeature, columns: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns ids before their rule, `[B]` int64, and which samples have an id."""
        if feature.columns:
            crosses = inputs_of_cross(name, feature)
            present = torch.stack([_present(one, columns) for one in crosses]).all(0)
            return crossed_in_torch([columns[one] for one in crosses]), present
        raw, present = columns[name], _present(name, columns)
        if feature.buckets:
            return self.buckets[name_in_model(name)](raw), present
        return raw if feature.transform == "none" else part_of_time(raw, feature.transform), present


def _present(name: str, columns: dict[str, Tensor]) -> Tensor:
    """Returns which samples have a value, `[B]`, of vectors which places have one, `[B, width]`."""
    raw = columns[name]
    return ~raw.isnan() if raw.is_floating_point() else columns[name_of_presence(name)]


class ServedModel(nn.Module):
    """A model behind the data rules.

    Args:
        model: The model with plain tables.
        rules: The rules.
        outputs: The outputs.
    """

    def __init__(self, model: nn.Module, rules: Rules, outputs: list[ModelOutput]) -> None:
        super().__init__()
        self.model, self.rules = model, rules
        self._outputs = outputs

    def forward(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the outputs by name for raw columns."""
        return compute_outputs(self._outputs, self.model(*self.rules(columns)))
