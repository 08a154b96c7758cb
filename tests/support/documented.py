"""The model that docs/tutorials/your_model.md shows, word for word, and others that read embeddings by place."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

PAGE = Path(__file__).parents[2] / "docs/tutorials/your_model.md"


def concatenated(inputs: Any) -> nn.Module:
    """Returns the model that the documentation shows."""
    (block,) = re.findall(r"^```python\n# my_model.py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    return names["build"](inputs)


class Head(nn.Module):
    """A linear layer over pooled embeddings and sums of sequences, in the order in which they come."""

    def __init__(self, inputs: Any) -> None:
        super().__init__()
        self.lengths = list(inputs.sequence_features.values())
        pooled = sum(table.embedding_dim * len(table.feature_names) for table in inputs.tables.embedding_bag_configs())
        width = pooled + len(self.lengths) * inputs.sequences.embedding_dim()
        self.linear = nn.Linear(width, inputs.labels, device=inputs.device)

    def forward(self, pooled, sequences):
        lengths = zip(sequences.values(), self.lengths, strict=True)
        return self.linear(torch.cat([pooled, *(one.to_padded_dense(length).sum(dim=1) for one, length in lengths)], 1))


class OfSequences(nn.Module):
    """The same over the tables of features and of sequences."""

    def __init__(self, inputs: Any) -> None:
        super().__init__()
        self.tables, self.sequences, self.head = inputs.tables, inputs.sequences, Head(inputs)

    def forward(self, dense, sparse):
        return self.head(self.tables(sparse).values(), self.sequences(sparse))
