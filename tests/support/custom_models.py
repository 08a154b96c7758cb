"""Models of a user's own, for tests that name them in a configuration."""

from torch import nn

from trainer.models.base import ModelInputs


class Sum(nn.Module):
    """Logits are a linear layer over all pooled embeddings; dense features are not used."""

    def __init__(self, inputs):
        super().__init__()
        self.tables = inputs.tables
        width = sum(table.embedding_dim * len(table.feature_names) for table in inputs.tables.embedding_bag_configs())
        self.head = nn.Linear(width, inputs.labels, device=inputs.device)

    def forward(self, dense, sparse):
        return self.head(self.tables(sparse).values())


def sum_of_embeddings(inputs: ModelInputs) -> nn.Module:
    """Is called by `model.name = "custom_models:sum_of_embeddings"`."""
    assert inputs.config.arguments == {"depth": 3}
    return Sum(inputs)
