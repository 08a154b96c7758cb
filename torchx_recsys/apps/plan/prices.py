"""Prices of hosts, from a file that comes with the trainer or from the user's own."""

import datetime
import tomllib
from pathlib import Path

import pydantic

from torchx_recsys.planner.hardware import HOSTS
from trainer.core.errors import InputError, nearest
from trainer.core.section import Section, validate
from trainer.core.storage import named, read_text

SHIPPED = Path(__file__).parent / "prices.toml"


class Prices(Section):
    """The content of a price file."""

    date: datetime.date
    """When the prices were read."""
    currency: str
    """Currency of the prices."""
    source: str = "no source given"
    """Source of the prices."""
    hosts: dict[str, pydantic.PositiveFloat]
    """Price of one host for an hour, by name of the host."""

    def of_host(self, name: str) -> float:
        """Returns the price of a host for an hour.

        Raises:
            InputError: The file has no such price.
        """
        host, _, number = name.partition(":")
        if number and host in HOSTS:
            raise InputError(f"--find names '{name}', but takes hosts without a number; write {host}, or --on {name}")
        if name not in self.hosts:
            raise InputError(
                f"--find names '{name}', which the price file has no price of"
                f"{nearest(name, self.hosts, 'add it to [hosts] of a copy of the file, and name that with --prices')}"
            )
        return self.hosts[name]


def read_prices(url: str | None) -> Prices:
    """Returns the prices in a file; without a URL, the trainer's own prices.

    Raises:
        InputError: The file cannot be read, or is no price file.
    """
    url = url or str(SHIPPED)
    with named("--prices", url):
        text = read_text(url)
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"--prices is '{url}', which is not TOML: {error}") from error
    prices = validate(Prices, tree, lambda _: f"--prices is '{url}': ")
    for name in prices.hosts:
        if name not in HOSTS:
            raise InputError(f"--prices is '{url}': hosts.{name} is no known host{nearest(name, HOSTS)}")
    if not prices.hosts:
        raise InputError(f"--prices is '{url}', which has no hosts; name at least one under [hosts]")
    return prices
