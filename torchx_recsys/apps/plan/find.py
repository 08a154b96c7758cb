"""The cheapest and the smallest cluster that fits, of all kinds and numbers of hosts."""

from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tabulate import tabulate
from torch import nn

from torchx_recsys.apps.plan.clusters import clusters_of_hosts, sharing_batch
from torchx_recsys.apps.plan.planning import plan_on, problem_on
from torchx_recsys.apps.plan.prices import Prices
from torchx_recsys.apps.plan.text import named_cluster, shortage
from torchx_recsys.planner.hardware import Cluster
from torchx_recsys.planner.plan import Planned, least_milliseconds
from trainer.config.root import Config
from trainer.core.console import plural
from trainer.core.errors import InputError

LISTED = 8
QUICK_TRIES = 100  # tries to repack tables; a single plan takes 20 times as many
HOUR_MS = 3_600_000
NEAR, BATCH_STEP = 0.05, 8  # range and step of the search for a batch size that more clusters divide


@dataclass(frozen=True)
class Offer:
    """A cluster that fits, or may fit.

    Attributes:
        number: Its index among all clusters, which breaks ties.
        cluster: The cluster.
        milliseconds: The time of a step; before the search, the proven least.
        per_hour: Price of an hour.
        samples: Samples of a step.
        planned: Its plan; None before the search.
    """

    number: int
    cluster: Cluster
    milliseconds: float
    per_hour: float
    samples: int
    planned: Planned | None = None

    @property
    def per_billion(self) -> float:
        """Price of a billion samples."""
        return self.per_hour * self.milliseconds / HOUR_MS / self.samples * 1e9

    @property
    def plan(self) -> Planned:
        """Its plan, after the search."""
        assert self.planned
        return self.planned


Rank = Callable[[Offer], tuple[float, ...]]
RANKINGS: dict[str, tuple[int, Rank]] = {
    "smallest": (1, lambda offer: (offer.cluster.ranks, offer.per_hour, offer.number)),
    "cheapest": (LISTED, lambda offer: (offer.per_hour, offer.milliseconds, offer.number)),
    "per sample": (LISTED, lambda offer: (offer.per_billion, offer.number)),
    "fastest": (1, lambda offer: (offer.milliseconds, offer.number)),
}
"""How many clusters each ranking lists, and its key, best first; each key is least at the least time of a step."""


@dataclass(frozen=True)
class Found:
    """The clusters examined, and the best of them.

    Attributes:
        best: The first clusters of each ranking.
        looked_at: The clusters whose ranks share the batch.
        searched: Number of clusters searched for a plan.
        refused: The plans of searched clusters that do not fit.
        too_small: Number of clusters proven too small.
        left_out: A line about clusters whose ranks do not share the batch; empty if there are none.
    """

    best: Mapping[str, Sequence[Offer]]
    looked_at: Sequence[Cluster]
    searched: int
    refused: Sequence[Planned]
    too_small: int
    left_out: str


def find_clusters(model: nn.Module, config: Config, hosts: Sequence[str], prices: Prices) -> Found:
    """Finds the best clusters of given hosts.

    A cluster is searched for a plan only if its proven least time of a step could place it among the best.

    Args:
        model: The unsharded model.
        config: The configuration.
        hosts: Names of hosts, or `all` for hosts with a price and GPUs.
        prices: Prices of hosts.

    Raises:
        InputError: A host is not known or has no price, no cluster shares the batch or fits, or the tables cannot be
            sharded as allowed.
    """
    every = clusters_of_hosts(hosts, prices)
    batch = config.data.global_batch_size
    sharing = sharing_batch(every, batch)
    search = _Search(model, config)
    least = [
        Offer(number, one, least_milliseconds(problem_on(model, config, one)), _per_hour(one, prices), batch)
        for number, one in enumerate(sharing)
    ]
    possible = [one for one in least if np.isfinite(one.milliseconds)]
    best = {name: _first(number, rank, possible, search) for name, (number, rank) in RANKINGS.items()}
    if not possible:
        search.plan(max(least, key=lambda one: one.cluster.ranks))  # for the memory that it lacks
    return Found(
        best=best,
        looked_at=sharing,
        searched=len(search.done),
        refused=[one for one in search.done.values() if not one.fits],
        too_small=len(least) - len(possible),
        left_out=_left_out(every, sharing, batch),
    )


@dataclass
class _Search:
    """Plans of clusters, each made once, and quickly."""

    model: nn.Module
    config: Config
    done: dict[int, Planned] = field(default_factory=dict)

    def plan(self, offer: Offer) -> Offer | None:
        """Returns a cluster with its plan; None if it does not fit."""
        if offer.number not in self.done:
            self.done[offer.number] = plan_on(self.model, self.config, offer.cluster, QUICK_TRIES)
        planned = self.done[offer.number]
        return replace(offer, milliseconds=planned.step.total, planned=planned) if planned.fits else None


def _first(number: int, rank: Rank, least: Sequence[Offer], search: _Search) -> list[Offer]:
    """Returns the first clusters of a ranking; searches only clusters whose least time could place them there."""
    found: list[Offer] = []
    for one in sorted(least, key=rank):
        if len(found) >= number and rank(one) > rank(found[number - 1]):
            break
        if offer := search.plan(one):
            insort(found, offer, key=rank)
    return found[:number]


def _per_hour(cluster: Cluster, prices: Prices) -> float:
    return cluster.nodes * prices.of_host(cluster.name or "")


def _left_out(every: Sequence[Cluster], sharing: Sequence[Cluster], batch: int) -> str:
    """Returns a line about clusters whose ranks do not divide the batch, with a nearby batch that more divide."""
    if len(sharing) == len(every):
        return ""
    number = f"{len(every) - len(sharing)} more are left out, as their ranks do not divide data.global_batch_size"
    other, share = _shared_batch(every, batch)
    more = f"; --data.global-batch-size {other} lets {share} take part" if share >= 2 * len(sharing) else ""
    return f"{number}, {batch}{more}"


def _shared_batch(every: Sequence[Cluster], batch: int) -> tuple[int, int]:
    """Returns the nearby batch that most clusters share, the nearest on a tie, and their number."""
    steps = np.arange(int(batch * (1 - NEAR)) // BATCH_STEP + 1, int(batch * (1 + NEAR)) // BATCH_STEP + 1)
    near = np.append(BATCH_STEP * steps, batch)
    ranks, number = np.unique([cluster.ranks for cluster in every], return_counts=True)
    share = (near[:, None] % ranks == 0) @ number
    best = np.lexsort((abs(near - batch), -share))[0]
    return int(near[best]), int(share[best])


def render_found(found: Found, prices: Prices) -> str:
    """Returns the answer and its runners-up.

    Raises:
        InputError: No cluster fits.
    """
    if not found.best["cheapest"]:
        last = found.refused[-1]
        raise InputError(
            f"--find looked at {plural(len(found.looked_at), 'cluster')}, and none fits; of {last.cluster} "
            f"{shortage(last)}"
        )
    return "\n\n".join(_parts(found, prices))


def _parts(found: Found, prices: Prices) -> Iterator[str]:
    first = found.best["cheapest"][0]
    yield "\n".join(line for line in (_looked_at(found), found.left_out) if line)
    yield "\n".join(f"{name:<11} {_answer(offers[0], prices)}" for name, offers in found.best.items())
    yield "by the price of an hour\n" + _table(found.best["cheapest"], prices)
    yield "by the price of a sample\n" + _table(found.best["per sample"], prices)
    yield (
        f"Prices of {prices.date}, from {prices.source}; --prices takes your own. Times are a model's: "
        f"{first.plan.step.source}."
    )


def _looked_at(found: Found) -> str:
    fit = found.searched - len(found.refused)
    worse = len(found.looked_at) - found.searched - found.too_small
    searched = f"{plural(len(found.looked_at), 'cluster')}: {found.searched} searched, of which {fit} fit"
    proven = {"be worse than those below": worse, "be too small": found.too_small}
    return ", ".join([searched, *(f"{number} proven to {what}" for what, number in proven.items() if number)])


def _answer(offer: Offer, prices: Prices) -> str:
    return f"{offer.cluster}: {named_cluster(offer.cluster)}, {offer.per_hour:,.2f} {prices.currency} an hour"


def _table(offers: Sequence[Offer], prices: Prices) -> str:
    rows = [
        [
            str(offer.cluster),
            f"{offer.cluster.ranks:,}",
            f"{offer.per_hour:,.2f}",
            f"{offer.per_billion:,.2f}",
            f"{offer.milliseconds:.4g}",
            offer.plan.step.longest.name,
            f"{offer.plan.found.gap:.1%}",
        ]
        for offer in offers
    ]
    money = prices.currency
    headers = ["cluster", "GPUs", f"{money}/hour", f"{money}/10^9 samples", "ms", "bound by", "above bound"]
    return tabulate(rows, headers, disable_numparse=True, colalign=("left", *["right"] * 4, "left", "right"))
