"""Plain torch: one embedding for each table, all rows in memory, twenty lines of loop."""

import torch
from run import Case, auc
from torch import nn


class DeepFM(nn.Module):
    """Linear part, factorization machine and network; dense features take part as one vector."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        width = case.dense + case.dim * len(case.tables)
        self.tables = tables_of(case)
        self.dense = nn.Linear(case.dense, case.dim, bias=False)
        self.wide = nn.Linear(width, 1)
        self.deep = layers(width, case.layers)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Returns the logit of each sample."""
        found = [table(ids[:, place]) for place, table in enumerate(self.tables)]
        total = torch.stack(found, 1).sum(1) + self.dense(dense)
        squares = torch.stack(found, 1).square().sum(1) + nn.functional.linear(
            dense.square(), self.dense.weight.square()
        )
        joined = torch.cat([dense, *found], 1)
        pairs = 0.5 * (total.square() - squares).sum(1, keepdim=True)
        return (self.wide(joined) + self.deep(joined) + pairs)[:, 0]


class DLRM(nn.Module):
    """Dot products of all pairs of embeddings and the dense features' vector."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.tables = tables_of(case)
        self.under = nn.Sequential(*layers(case.dense, [case.layers[0], case.dim])[:-1])
        vectors = len(case.tables) + 1
        self.pairs = torch.tril_indices(vectors, vectors, -1)
        self.over = layers(case.dim + vectors * (vectors - 1) // 2, case.layers)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Returns the logit of each sample."""
        under = self.under(dense)
        vectors = torch.stack([under, *(table(ids[:, place]) for place, table in enumerate(self.tables))], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.over(torch.cat([under, products], 1))[:, 0]


def tables_of(case: Case) -> nn.ModuleList:
    """Returns a table of embeddings for each column of ids."""
    made = nn.ModuleList(nn.Embedding(rows, case.dim) for rows in case.tables)
    for table in made:
        nn.init.normal_(table.weight, std=0.01)  # by default 1, with which products of embeddings learn little
    return made


def layers(inputs: int, widths: list[int]) -> nn.Sequential:
    """Returns hidden layers and one output."""
    made: list[nn.Module] = []
    for before, width in zip([inputs, *widths], widths, strict=False):
        made += [nn.Linear(before, width), nn.ReLU()]
    return nn.Sequential(*made, nn.Linear(widths[-1], 1))


def train(case: Case) -> float:
    """Trains and returns the AUC of the test rows."""
    dense, ids, labels = (torch.from_numpy(each) for each in case.rows("train"))
    model = {"deepfm": DeepFM, "dlrm": DLRM}[case.model](case)
    optimizer = torch.optim.Adam(model.parameters(), case.learning_rate)
    loss_of = nn.BCEWithLogitsLoss()
    for _ in range(case.epochs):
        order = torch.randperm(len(labels))
        dense, ids, labels = dense[order], ids[order], labels[order]
        for start in range(0, len(labels) // case.batch * case.batch, case.batch):
            rows = slice(start, start + case.batch)
            optimizer.zero_grad()
            loss_of(model(dense[rows], ids[rows]), labels[rows]).backward()
            optimizer.step()
    dense, ids, labels = (torch.from_numpy(each) for each in case.rows("test"))
    with torch.no_grad():
        return auc(model(dense, ids), labels)
