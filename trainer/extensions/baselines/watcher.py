"""Shows the baselines of a run's rows under its final metrics, and copies them into the run directory."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer.config.root import Config
from trainer.core.console import next_commands
from trainer.core.distributed import DistributedContext
from trainer.core.errors import DamagedError, InputError
from trainer.core.secrets import place, without_secrets
from trainer.extensions.baselines.kept import NAME, Tree, belongs_to, differences, find, of_tasks, url_of
from trainer.extensions.baselines.table import draw, shown
from trainer.metrics.registry import built_in_direction
from trainer.training.watchers import RunView, Watcher

KEY = "report.baselines"
GUIDE = "docs/guides/what_to_do_when.md"


def check(config: Config, context: DistributedContext) -> None:
    """Refuses a key that names no file of baselines.

    Raises:
        InputError: There is no such file, or it is another file.
    """
    url = config.report.baselines
    if url and find(KEY, url) is None:
        raise InputError(
            f"{KEY} is {place(url)}, where there is no file; write it with data.baselines, or leave it out"
        )


class Baselines(Watcher):
    """Copies the baselines of this run's rows into its directory, and shows them at the end. Rank 0 does all of it."""

    def __init__(self) -> None:
        self._kept: Tree | None = None
        self._says_how = False

    def begin(self, run: RunView, step: int, last_step: int) -> None:
        """Finds the baselines: those that `report.baselines` names, those beside the data, or the run's own copy."""
        data = run.config.data
        if not run.context.is_rank0 or data.segments.path or not (data.validation or data.test):
            return
        try:
            self._kept = self._found(run)
        except (InputError, DamagedError) as error:
            run.log(f"baselines are not shown: {error}")
        if self._kept:
            with run.tolerate_failed_writes():
                run.directory.write_json(NAME, self._kept)
                self.files = {"baselines": NAME}  # pyrefly: ignore[read-only]

    def _found(self, run: RunView) -> Tree | None:
        url = url_of(run.config)
        kept = find(KEY, url) or run.directory.read_json(NAME)
        if kept is None:
            self._says_how = True
            return None
        now = belongs_to(run.config)
        if other := next(differences(kept["about"], now), None):
            run.log(
                f"the baselines in {without_secrets(url)} are of other rows ({other}), and are not shown; "
                "data.baselines --overwrite True measures them anew"
            )
            return None
        mine = of_tasks(kept, now)
        if not mine["about"]["tasks"]:
            run.log(f"the baselines in {without_secrets(url)} are of other tasks, and are not shown")
            return None
        return mine

    def at_end(self, run: RunView, step: int, state: str) -> None:
        """Prints the baselines beside the metrics of the model, and says where it is below one of them."""
        if not run.context.is_rank0 or state != "finished":
            return
        evaluated = last_evaluations(run.evaluations())
        if self._kept and evaluated:
            for line in lines(run.config, self._kept, evaluated):
                run.log(line)
        elif self._says_how and evaluated:
            config = run.directory.url_of("config.toml")
            command = next_commands(["torchx", "run", "data.baselines", "--config", config])
            run.log(f"no baselines: what simple models reach on these rows is not known. {command}")


def last_evaluations(records: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Returns the last evaluation on each split; if the test split has the weights of an earlier step, that step's."""
    last = {line["split"]: line for line in records}
    if "test" in last:
        same = [line for line in records if line["split"] == "validation" and line["step"] == last["test"]["step"]]
        last |= {"validation": same[-1]} if same else {}
    return last


def lines(config: Config, kept: Tree, evaluated: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yields a table for each task of the last split, and a line for each task that is below a baseline.

    Args:
        config: The configuration.
        kept: The baselines.
        evaluated: The evaluations of the model by split.
    """
    samples = kept["about"].get("samples", {})
    for split, line in evaluated.items():
        if split in samples and int(line.get("samples", samples[split])) != samples[split]:
            yield (
                f"baselines are not shown: they have {samples[split]:,} samples of {split}, and this model "
                f"{int(line['samples']):,}; measure them anew with data.baselines"
            )
            return
    tasks = [*config.named_tasks()]
    for task in tasks:
        suffix = f"/{task}" if len(tasks) > 1 else ""
        ours = {split: _of_task(line, suffix) for split, line in evaluated.items()}
        theirs = {split: kept.get(split, {}).get(task, {}) for split in ours}
        split = next((one for one in ("test", "validation") if theirs.get(one)), None)
        if split is None:
            continue
        rows = [("this model", ours)]
        rows += [(name, {split: _of_baseline(theirs[split], name)}) for name in _names(theirs[split])]
        title = f"{task}" if suffix else ""
        yield "\n" + draw(title, rows, [split], [name for name in shown(ours[split]) if name in theirs[split]])
        if below := _below(config, ours, theirs, suffix):
            yield f"{below}: see {GUIDE}"


def _below(config: Config, ours: Mapping[str, Mapping], theirs: Mapping[str, Mapping], suffix: str) -> str | None:
    """Returns in words the best baseline that the model is below, by the metric that a checkpoint is chosen by."""
    split = next((one for one in ("validation", "test") if theirs.get(one)), "")
    chosen = (config.checkpoint.keep.best, config.train.stop_early.metric, *(f"{name}{suffix}" for name in ours[split]))
    names = [name.removesuffix(suffix) for name in chosen if name and name.endswith(suffix)]
    metric = next((name for name in names if built_in_direction(name) is not None and name in theirs[split]), None)
    if metric is None or metric not in ours[split]:
        return None
    sign = 1 if built_in_direction(metric) else -1
    name, value = max(theirs[split][metric].items(), key=lambda item: sign * item[1])
    mine = ours[split][metric]
    if sign * mine >= sign * value:
        return None
    what = f"{suffix.removeprefix('/')} is " if suffix else ""
    return f"{what}below {name} on {split} {metric}, {mine:.5f} beside {value:.5f}"


def _of_task(line: Mapping[str, Any], suffix: str) -> dict[str, float]:
    """Returns the metrics of a task in a line of evaluations.jsonl."""
    return {
        name.removesuffix(suffix): value
        for name, value in line.items()
        if isinstance(value, float) and name.endswith(suffix) and name != "samples"
    }


def _names(metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    return list(dict.fromkeys(name for values in metrics.values() for name in values))


def _of_baseline(metrics: Mapping[str, Mapping[str, float]], name: str) -> dict[str, float]:
    return {metric: values[name] for metric, values in metrics.items() if name in values}
