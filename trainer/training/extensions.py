"""The table of extensions: features outside the core, which are imported only when a run uses them.

The core imports no file of `trainer/extensions/`. It knows a feature only by its line in `EXTENSIONS`, so a new feature
is a folder there and a line here.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import Any, Literal, get_args

from trainer.config.root import Config
from trainer.core.errors import InputError

Place = Literal["start", "check", "driver", "wrap", "ids", "tuner", "watcher"]
"""Where an extension acts. Every rank calls what it finds at a place, so that collectives are allowed.

* `start`, `(config, context) -> None`: once all ranks are connected, before the run directory is claimed.
* `check`, `(config, context) -> None`: on rank 0, before the run directory is claimed; raises InputError.
* `driver`, a class `(job)`: the `Driver` of the run, in place of the one that has one order of samples; at most one.
* `wrap`, `(model, context, config) -> None`: changes the model after its tables are sharded, before it has optimizers.
* `ids`, an `IdMap` class (`id_map.py`): gives rows of tables to raw ids; at most one.
* `tuner`, a `Tuner` class `(session)`: may change how later steps round, from a step on that the run's files have.
* `watcher`, a `Watcher` class without options: watches the run, and changes none of its bits.
"""


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A feature outside the core.

    Attributes:
        places: `package.module:object` for each place in the core where it acts.
        key: Returns the key that turns it on; None while it is off.
        always: Whether it is on even if no key turns it on.
    """

    places: Mapping[Place, str]
    key: Callable[[Config], str | None] = lambda _: None
    always: bool = False


def _set(key: str) -> Callable[[Config], str | None]:
    """Returns a function for `Extension.key`: it returns the key if its value is not 0, false or none."""
    return lambda config: key if reduce(getattr, key.split("."), config) else None


def _managed_ids(config: Config) -> str | None:
    features = next(iter(config.data.managed_tables.values()), None)
    return f'data.sparse.{features[0]}.ids = "managed"' if features else None


EXTENSIONS = {
    "preflight": Extension(
        places={"start": "trainer.extensions.preflight:preflight"}, key=_set("train.preflight_seconds")
    ),
    "segments": Extension(
        places={"driver": "trainer.extensions.segments.segments:Segments"}, key=_set("data.segments.path")
    ),
    "compiled": Extension(
        places={"wrap": "trainer.extensions.compiled.compile:compile_dense_part"},
        key=lambda config: "train.compile" if config.train.compile is True else None,
    ),
    "compiled_when_it_pays": Extension(
        places={"tuner": "trainer.extensions.compiled.when_it_pays:CompileWhenItPays"}, always=True
    ),
    "managed_ids": Extension(places={"ids": "trainer.extensions.managed_ids.managed_ids:ManagedIds"}, key=_managed_ids),
    "histograms": Extension(
        places={"watcher": "trainer.extensions.histograms:Histograms"}, key=_set("report.histograms_every_steps")
    ),
    "training_metrics": Extension(
        places={
            "check": "trainer.extensions.training_metrics:check",
            "watcher": "trainer.extensions.training_metrics:TrainingMetrics",
        },
        key=_set("report.training_metrics"),
    ),
    "gradient_norms": Extension(
        places={"watcher": "trainer.extensions.gradient_norms:GradientNorms"}, key=_set("report.gradient_norms")
    ),
    "profiler": Extension(
        places={
            "check": "trainer.extensions.profiler.profiler:check",
            "watcher": "trainer.extensions.profiler.profiler:Profiler",
        },
        key=_set("report.profile.first_step"),
        always=True,
    ),
    "baselines": Extension(
        places={
            "check": "trainer.extensions.baselines.watcher:check",
            "watcher": "trainer.extensions.baselines.watcher:Baselines",
        },
        key=_set("report.baselines"),
        always=True,
    ),
    "mlperf_log": Extension(
        places={
            "check": "trainer.extensions.mlperf_log:check",
            "watcher": "trainer.extensions.mlperf_log:MlperfLog",
        },
        key=_set("report.mlperf_log.organization"),
    ),
    "page": Extension(places={"watcher": "trainer.extensions.page.watcher:Page"}, always=True),
    # Last, because it waits at the end.
    "trackers": Extension(
        places={
            "check": "trainer.extensions.trackers.watcher:check",
            "watcher": "trainer.extensions.trackers.watcher:Trackers",
        },
        key=_set("report.trackers"),
    ),
}
"""The extensions by name, in the order in which they act at a place."""


def found(config: Config, place: Place) -> Iterator[Any]:
    """Yields the objects of the active extensions for a place, in the order of `EXTENSIONS`.

    An extension whose files are deleted counts as off.

    Raises:
        InputError: A key turns on an extension whose files are deleted.
    """
    for name, extension in EXTENSIONS.items():
        path, key = extension.places.get(place), extension.key(config)
        if path and (key or extension.always) and (acting := _import(path, name, key)):
            yield acting


def check_extensions(config: Config) -> None:
    """Refuses keys of extensions whose files are deleted.

    Raises:
        InputError: A key turns on such an extension.
    """
    for place in get_args(Place):
        for _ in found(config, place):
            pass


def _import(path: str, name: str, key: str | None) -> Any:
    """Returns an object of an extension; None if its files are deleted and no key turns it on."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        if key is None:
            return None
        raise InputError(
            f"{key} is set, but the extension '{name}' that it turns on is not installed: there is no {error.name}; "
            "leave the key out, or install the whole package"
        ) from error
