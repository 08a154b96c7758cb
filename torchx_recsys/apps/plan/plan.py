"""`python -m trainer plan`: sharding plans for this machine, or for clusters given by name."""

from torchx_recsys.apps.plan.clusters import clusters_of_hosts, named_by_on, sharing_batch
from torchx_recsys.apps.plan.prices import read_prices
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.core.storage import refuse_existing
from trainer.plan.measurements import with_statistics

EXCLUDED = {
    "--on": ("--world-size",),
    "--find": ("--on", "--world-size", "--vary", "--page", "--png", "--out"),
    "--vary": ("--page", "--png", "--out"),
    "--run": ("--on", "--find", "--vary", "--world-size", "--png"),
}


def plan(
    config: Config | None = None,
    config_words: list[str] | None = None,
    world_size: int | None = None,
    on: list[str] | None = None,
    find: list[str] | None = None,
    prices: str | None = None,
    vary: list[str] | None = None,
    run: str | None = None,
    page: str | None = None,
    png: str | None = None,
    out: str | None = None,
    overwrite: bool = False,
) -> None:
    """Plans for this machine, or for clusters given by name. CONFIG is a TOML file or a name.

    Neither a GPU nor a process group nor data are needed.

    Args:
        config: The configuration; --run can do without.
        config_words: The configuration and its overrides as typed.
        world_size: Ranks to plan for: on this machine, or on as many of planner.hardware as they need. Unset: 2.
        on: Clusters to plan for, HOST:NODES such as h100:8, a host of docs/reference/resources.md; several: compared.
        find: Hosts to search for the cheapest and the smallest cluster that fits, or all with a price and GPUs.
        prices: A price file for --find, any fsspec URL. Unset: the trainer's own, with on-demand prices.
        vary: Settings to change, one at a time, to see what each saves: batch, dimension, precision, comms, hotness,
            tables, or all.
        run: A finished run, any fsspec URL: shows its plan, and the planner's forecast beside the run's measurements.
        page: An HTML file to draw the plan to, and clusters beside each other, any fsspec URL; a browser opens it.
        png: An image to draw the same to, .png, any fsspec URL.
        out: Where to save the plan.json, any fsspec URL; planner.plan takes it. With --run: the numbers, as JSON.
        overwrite: Replace files that exist.

    Raises:
        InputError: The model cannot be built or planned as configured, the tables fit no cluster, or a file cannot be
            read or written.
    """
    given = {
        "--on": on,
        "--find": find,
        "--vary": vary,
        "--run": run,
        "--world-size": world_size,
        "--page": page,
        "--png": png,
        "--out": out,
    }
    for flag, value in given.items():
        if value == "":
            raise InputError(f"{flag} is empty; name a file, any fsspec URL, or leave it out")
    flags = {flag for flag, value in given.items() if value is not None}
    _check_flags(flags, prices)
    if png and not png.endswith(".png"):
        raise InputError(f"--png is '{png}', but only .png can be drawn; give it that ending, or use --page for HTML")
    refuse_existing({"--page": page, "--png": png, "--out": out}, overwrite)
    if run:
        from torchx_recsys.apps.plan.run import compare_with_plan

        print(compare_with_plan(run, config, page, out))
        return
    if config is None or config_words is None:
        raise InputError("CONFIG is missing: a TOML file or the name of a preset, as in `plan movielens`")
    _check_planner(flags, config)
    clusters = None if on is None else named_by_on(on, config)
    if clusters and len(clusters) > 1 and (vary or out):
        raise InputError(
            f"--on names {len(clusters)} clusters, but {'--vary' if vary else '--out'} takes one; name one"
        )
    of_hosts = read_prices(prices) if find is not None else None
    if find is not None and of_hosts:
        sharing_batch(clusters_of_hosts(find, of_hosts), config.data.global_batch_size)
    config = with_statistics(config)

    from torchx_recsys.apps.plan import answer  # loads torch, in seconds, to measure the dense part of a model

    if find is not None and of_hosts:
        answer.find(config, config_words, find, of_hosts)
    elif vary is not None:
        answer.vary(config, clusters, world_size, vary)
    else:
        answer.plan(config, config_words, clusters, world_size, page, png, out)


def _check_flags(given: set[str], prices: str | None) -> None:
    """Refuses flags that exclude each other.

    Raises:
        InputError: The message names both.
    """
    for flag, others in EXCLUDED.items():
        for other in others if flag in given else ():
            if other in given:
                raise InputError(f"{other} cannot be given with {flag}; leave one of them out")
    if prices and "--find" not in given:
        raise InputError(f"--prices is '{prices}', but only --find uses prices; add --find all")


def _check_planner(given: set[str], config: Config) -> None:
    """Refuses flags that the planner's section excludes.

    Raises:
        InputError: The message names both.
    """
    for key in ("plan", "hardware") if "--find" in given else ():
        if value := getattr(config.planner, key):
            raise InputError(f"planner.{key} is '{value}', but --find plans for many clusters; leave one of them out")
