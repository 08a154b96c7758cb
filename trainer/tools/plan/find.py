"""The cheapest and the smallest cluster that fits, of all kinds of hosts and numbers of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tabulate import tabulate
from torch import nn

from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.plan.cluster import Cluster, parse_cluster
from trainer.plan.loads import bound_by, parts_of, step_of
from trainer.plan.planned import Planned, plan_on
from trainer.plan.prices import Prices
from trainer.plan.step_time import StepTime
from trainer.tools.plan.text import named_cluster, shortage

ALL = "all"
NODES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
LISTED = 8
QUICK_TRIES = 100  # to pack tables anew; a plan alone takes 20 times as many
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Offer:
    """A cluster that fits.

    Attributes:
        planned: Its plan.
        step: The time of a step.
        per_hour: Its price of an hour.
        samples: Samples of a step.
    """

    planned: Planned
    step: StepTime
    per_hour: float
    samples: int

    @property
    def per_billion(self) -> float:
        """Its price of a billion samples."""
        return self.per_hour * self.step.total / HOUR_MS / self.samples * 1e9

    @property
    def size(self) -> tuple[int, float]:
        """Its number of ranks, then its price."""
        return self.planned.cluster.ranks, self.per_hour


@dataclass(frozen=True)
class Found:
    """What was looked at.

    Attributes:
        offers: The clusters that fit.
        refused: The plans of those that do not.
    """

    offers: Sequence[Offer]
    refused: Sequence[Planned]


def clusters_to_try(hosts: Sequence[str], prices: Prices, config: Config) -> list[Cluster]:
    """Returns all clusters of some hosts whose ranks share a batch.

    Args:
        hosts: Names of hosts, or `all` for those that have a price and GPUs.
        prices: Prices of hosts.
        config: The configuration.

    Raises:
        InputError: A host is not known or has no price, or no cluster can share a batch.
    """
    names = [name for name in prices.hosts if parse_cluster(f"{name}:1").on_gpu] if list(hosts) == [ALL] else hosts
    for name in names:
        prices.of_host(name)
    batch = config.data.global_batch_size
    clusters = [parse_cluster(f"{name}:{nodes}") for name in names for nodes in NODES]
    if fitting := [cluster for cluster in clusters if batch % cluster.ranks == 0]:
        return fitting
    raise InputError(f"data.global_batch_size is {batch}, which the ranks of no cluster divide; use a multiple of 8")


def find_clusters(model: nn.Module, config: Config, clusters: Sequence[Cluster], prices: Prices) -> Found:
    """Plans for clusters, quickly.

    Raises:
        InputError: The tables cannot be sharded as allowed.
    """
    planned = [plan_on(model, config, cluster, QUICK_TRIES) for cluster in clusters]
    samples = config.data.global_batch_size
    offers = [
        Offer(one, step_of(one), one.cluster.nodes * prices.of_host(one.cluster.name or ""), samples)
        for one in planned
        if one.fits
    ]
    return Found(offers, [one for one in planned if not one.fits])


def render_found(found: Found, prices: Prices) -> str:
    """Returns the answer and its runners-up.

    Raises:
        InputError: No cluster fits.
    """
    if not found.offers:
        last = found.refused[-1]
        raise InputError(
            f"--find looked at {len(found.refused)} clusters, and none fits; of {last.cluster} {shortage(last)}"
        )
    return "\n\n".join(_parts(found, prices))


def _parts(found: Found, prices: Prices) -> Iterator[str]:
    by_hour = sorted(found.offers, key=lambda offer: (offer.per_hour, offer.step.total))
    by_sample = sorted(found.offers, key=lambda offer: offer.per_billion)
    smallest = min(found.offers, key=lambda offer: offer.size)
    tried = len(found.offers) + len(found.refused)
    answers = {
        "smallest": smallest,
        "cheapest": by_hour[0],
        "per sample": by_sample[0],
        "fastest": min(found.offers, key=lambda offer: offer.step.total),
    }
    yield f"{tried} clusters, of which {len(found.offers)} fit"
    yield "\n".join(f"{name:<11} {_answer(offer, prices)}" for name, offer in answers.items())
    yield "by the price of an hour\n" + _table(by_hour[:LISTED], prices)
    yield "by the price of a sample\n" + _table(by_sample[:LISTED], prices)
    yield (
        f"Prices of {prices.date}, from {prices.source}; --prices takes your own. Times are a model's: "
        f"{by_hour[0].step.source}."
    )
    yield f"Next:  --on {by_hour[0].planned.cluster} in place of --find tells what is where, and why"


def _answer(offer: Offer, prices: Prices) -> str:
    cluster = offer.planned.cluster
    return f"{cluster}: {named_cluster(cluster)}, {offer.per_hour:,.2f} {prices.currency} an hour"


def _table(offers: Sequence[Offer], prices: Prices) -> str:
    rows = [
        [
            str(offer.planned.cluster),
            f"{offer.planned.cluster.ranks:,}",
            f"{offer.per_hour:,.2f}",
            f"{offer.per_billion:,.2f}",
            f"{offer.step.total:.4g}",
            bound_by(parts_of(offer.step)).name,
            f"{offer.planned.found.gap:.1%}",
        ]
        for offer in offers
    ]
    money = prices.currency
    headers = ["cluster", "GPUs", f"{money}/hour", f"{money}/10^9 samples", "ms", "bound by", "above bound"]
    return tabulate(rows, headers, disable_numparse=True, colalign=("left", *["right"] * 4, "left", "right"))
