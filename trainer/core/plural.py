"""Numbers of things in words."""


def plural(number: int, name: str) -> str:
    """Returns a number of things, such as `1 row` or `1,200 rows`."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"
