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


class Unit(nn.Module):
    """A unit of HSTU: gated attention by SiLU, with a bias for each distance."""

    def __init__(self, dim: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.norm, self.attended_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.projections, self.output = nn.Linear(dim, 4 * dim), nn.Linear(dim, dim)
        self.bias = nn.Parameter(torch.zeros(length))
        self.distances = (torch.arange(length)[:, None] - torch.arange(length)).clamp(min=0)

    def forward(self, tokens: torch.Tensor, present: torch.Tensor, asking: int) -> torch.Tensor:
        """Returns the states of the last tokens, `[B, asking, D]`, from tokens `[B, L, D]` and which are present."""
        gates, values, queries, keys = nn.functional.silu(self.projections(self.norm(tokens))).chunk(4, 2)
        bias = self.bias.index_select(0, self.distances[-asking:].flatten()).view(asking, -1)
        weights = nn.functional.silu(torch.baddbmm(bias, queries[:, -asking:], keys.mT)).tril(self.length - asking)
        attended = torch.bmm(weights, values * present[:, :, None]) / self.length
        return tokens[:, -asking:] + self.output(self.attended_norm(attended) * gates[:, -asking:])


class HSTU(nn.Module):
    """Units over the history and the item, and layers over the item and its state."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.table = nn.Embedding(case.tables[0] + 1, case.dim, padding_idx=-1)
        nn.init.normal_(self.table.weight, std=0.01)
        self.units = nn.ModuleList(Unit(case.dim, case.history + 1) for _ in range(case.units))
        self.norm = nn.LayerNorm(case.dim)
        self.over = layers(2 * case.dim, case.layers)

    def forward(self, _: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Returns the logit of each sample."""
        present = ids >= 0
        tokens = self.table(ids.where(present, self.table.padding_idx))
        item = tokens[:, -1]
        for unit in self.units[:-1]:
            tokens = unit(tokens, present, tokens.shape[1])
        state = self.norm(self.units[-1](tokens, present, 1)[:, 0])  # nobody reads the other states of the last unit
        return self.over(torch.cat([item, state], 1))[:, 0]


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
    model = {"deepfm": DeepFM, "dlrm": DLRM, "hstu": HSTU}[case.model](case)
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
