"""Generates a log in Yambda's shape with a planted truth: which users like which genres.

A user likes half of the genres. Which items a user meets has nothing to do with that, but whether the user plays at
least half of one has: its log-odds are `beta` if the user likes the genre, else minus `beta`, and by the item plus or
minus `gamma`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import exp

import numpy as np
import pyarrow as pa

from torchx_recsys.apps.datasets.yambda_source import DAY, EVENT_TYPES, PLAYED
from trainer.core.errors import InputError

TICK = 5  # seconds; published times are multiples of it, so that many are equal
ALBUMS = 4  # most albums of an artist
UNMAPPED = 0.01  # share of items without an artist and an album
LIKED, DISLIKED = 0.03, 0.03  # shares of played and of skipped tracks
ORGANIC = 0.8
LEAST = {"users": 1, "events": 1, "items": 1, "artists": 1, "genres": 2, "days": 1, "zipf": 0, "drift": 0, "spread": 0}
MAPS, DAYS = 1, 2  # streams of random numbers
EVENTS = pa.schema(
    [
        *((name, pa.uint32()) for name in ("uid", "timestamp", "item_id")),
        ("is_organic", pa.uint8()),
        ("event_type", pa.string()),
        ("played_ratio_pct", pa.uint16()),
        ("track_length_seconds", pa.uint32()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Planted:
    """What the log has, and its truth.

    Attributes:
        users: Users.
        events: Listens of a user, in the mean.
        items: Items, whose frequencies follow Zipf's law.
        artists: Artists.
        genres: Genres, each of a share of the artists.
        days: Days to train on; a test day comes after them.
        zipf: Exponent of the frequencies.
        beta: Log-odds by the taste of the user.
        gamma: Log-odds by the item.
        drift: Changes of each of a user's tastes in a day.
        spread: Standard deviation of the logarithm of the activity of users.
        seed: Other seeds give other logs.
    """

    users: int
    events: int
    items: int
    artists: int
    genres: int
    days: int
    zipf: float
    beta: float
    gamma: float
    drift: float
    spread: float
    seed: int

    def check(self) -> None:
        """Refuses values out of range.

        Raises:
            InputError: The message names the flag.
        """
        for name, least in LEAST.items():
            if not getattr(self, name) >= least:
                raise InputError(f"--{name} is {getattr(self, name)}; it must be {least} or more")
        if self.genres % 2:
            raise InputError(f"--genres is {self.genres}; it must be even, as a user likes half of them")
        if self.artists < self.genres:
            raise InputError(f"--artists is {self.artists}, fewer than --genres {self.genres}; a genre needs an artist")

    def settings(self) -> dict[str, float]:
        """Returns all values by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def limits(self) -> dict[str, float]:
        """Returns the AUC of whoever knows the tastes of users and the items, and of whoever knows the items alone."""
        odds = np.array([[taste * self.beta + item * self.gamma for item in (1, -1)] for taste in (1, -1)])
        chance = 1 / (1 + np.exp(-odds))
        of_item = np.broadcast_to(chance.mean(axis=0), chance.shape)
        return {"best_auc": _auc(chance.ravel(), chance.ravel()), "item_auc": _auc(of_item.ravel(), chance.ravel())}


def _auc(scores: np.ndarray, chance: np.ndarray) -> float:
    """Returns the AUC of scores of equally frequent samples, given the chance that each is positive."""
    wins = (scores[:, None] > scores) + (scores[:, None] == scores) / 2
    return float((chance[:, None] * (1 - chance) * wins).sum() / (chance.sum() * (1 - chance).sum()))


class Generator:
    """Generates the maps, and the events of each day.

    Args:
        planted: What to generate.

    Attributes:
        artist: The artist of each item, from 1.
        genre: The genre of each item.
        sign: What `gamma` is multiplied with, 1 or -1 for each item.
        taste: Whether each user likes each genre, 1 or -1, `[users, genres]`; it drifts from day to day.
    """

    def __init__(self, planted: Planted) -> None:
        self._planted = planted
        random = np.random.default_rng([planted.seed, MAPS])
        order = random.permutation(planted.items)
        self.artist = order % planted.artists + 1
        self.genre = (self.artist - 1) % planted.genres
        self._album = (self.artist - 1) * ALBUMS + random.integers(ALBUMS, size=planted.items) + 1
        self.sign = random.choice([-1, 1], planted.items)
        self._is_mapped = random.random(planted.items) >= UNMAPPED
        places = random.random((planted.users, planted.genres)).argsort(axis=1)
        self.taste = np.where(places < planted.genres // 2, 1, -1).astype(np.int8)
        activity = random.lognormal(-(planted.spread**2) / 2, planted.spread, planted.users)  # of mean 1
        self._rates = activity * planted.events / planted.days
        weights = np.arange(1, planted.items + 1) ** -planted.zipf
        self._up_to = np.cumsum(random.permutation(weights)) / weights.sum()

    def maps(self) -> dict[str, pa.Table]:
        """Returns the maps of items to artists and albums by name; as published, an item may be there twice."""
        items = np.flatnonzero(self._is_mapped) + 1
        twice = np.append(items[::50], items)
        tables = {}
        for name, ids in (("artist", self.artist), ("album", self._album)):
            of = ids[twice - 1]
            of[: len(twice) - len(items)] = 1  # earlier rows, which do not count
            tables[name] = pa.table({f"{name}_id": pa.array(of, pa.uint32()), "item_id": pa.array(twice, pa.uint32())})
        return tables

    def days(self) -> Iterator[pa.Table]:
        """Yields the events of each day in the order of time; the last one is the test day."""
        for day in range(self._planted.days + 1):
            yield self._day(day)
            self._drift(day)

    def _drift(self, day: int) -> None:
        random = np.random.default_rng([self._planted.seed, DAYS, day, 1])
        # An odd number of changes in a day, which come at random moments.
        changes = random.random(self.taste.shape) < (1 - exp(-2 * self._planted.drift)) / 2
        self.taste[changes] *= -1

    def _day(self, day: int) -> pa.Table:
        planted, random = self._planted, np.random.default_rng([self._planted.seed, DAYS, day])
        user = np.repeat(np.arange(planted.users), random.poisson(self._rates))
        rows = len(user)
        item = np.minimum(np.searchsorted(self._up_to, random.random(rows)), planted.items - 1)
        time = day * DAY + random.integers(DAY // TICK, size=rows) * TICK
        odds = planted.beta * self.taste[user, self.genre[item]] + planted.gamma * self.sign[item]
        played = random.random(rows) < 1 / (1 + np.exp(-odds))
        ratio = np.where(played, random.integers(PLAYED, 101, rows), random.integers(0, PLAYED, rows))
        # A like has the time of its listen, and would give it away.
        chance = random.random(rows)
        kind = np.select([played & (chance < LIKED), ~played & (chance < DISLIKED)], [1, 2], 0)
        length, organic = random.integers(60, 400, rows), random.random(rows) < ORGANIC
        reacted = np.flatnonzero(kind)
        both = np.append(np.arange(rows), reacted)
        is_listen = np.arange(len(both)) < rows
        order = np.lexsort((is_listen, time[both]))  # likes first: the order of equal times is open, as published
        both, is_listen = both[order], is_listen[order]
        types = np.array(EVENT_TYPES)[np.where(is_listen, 0, kind[both])]
        columns = [user[both] + 1, time[both], item[both] + 1, organic[both], types]
        arrays = [pa.array(column).cast(dtype) for column, dtype in zip(columns, EVENTS.types, strict=False)]
        of_listens = [
            pa.array(one[both], dtype, mask=~is_listen) for one, dtype in ((ratio, pa.uint16()), (length, pa.uint32()))
        ]
        return pa.Table.from_arrays([*arrays, *of_listens], schema=EVENTS)
