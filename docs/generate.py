"""Writes the parts of the documentation that the code generates: `python -m docs.generate`.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`; the rest is written by hand. Some parts
take an argument: `<!-- generated: scheduler-options slurm -->`.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin

import torch
from docstring_parser import Docstring, parse
from torchx.schedulers import get_scheduler_factories
from torchx.specs import AppDef, runopt

from benchmarks.house import read_files
from trainer.config.help import Key
from trainer.core.registry import find_by_name
from trainer.core.section import Section

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
PART = re.compile(r"(<!-- generated: ([\w-]+)((?: \w+)*) -->\n).*?(<!-- end -->)", re.DOTALL)
COMPONENT_FILES = ("dlrm", "data", "tools")
OF_EVERY_JOB = ("h", "image", "env", "mounts", "metadata")
WITH_DEFAULTS = ("cpu", "gpu", "memMB", "max_retries", "name")
WIDTH = 86  # characters of a line of code that a page of 1280 pixels shows
JOB_ARGUMENTS = (*OF_EVERY_JOB, *WITH_DEFAULTS)
SOURCES = ("movielens", "criteo", "yambda", "taobao", "synthetic")
READING_ORDER = (
    "__main__",
    "commands",
    "core/distributed",
    "training/loop",
    "training/driver",
    "training/setup",
    "training/resume",
    "training/epochs",
    "training/sharded_model",
    "plan/sharding",
    "training/step_loop",
    "training/session",
    "training/cut",
    "training/step",
    "models/tasks",
    "optim/optimizers",
    "data/epoch_order",
    "batches/loader",
    "batches/rows",
    "batches/decode",
    "batches/batch",
    "run/preemption",
    "checkpoint/saver",
    "checkpoint/store",
    "training/finish",
)
SIZED = (
    "trainer",
    "trainer/extensions",
    "torchx_recsys/planner",
    "torchx_recsys/apps",
    "components",
    "schedulers",
    "torchx_recsys/pipelines",
    "torchx_recsys/sweeps",
    "tests",
)


def main() -> None:
    """Rewrites every page whose generated parts are out of date."""
    for page in PAGES:
        old = page.read_text()
        new = render(old)
        if new != old:
            page.write_text(new)
            print(f"wrote {page.relative_to(ROOT)}")


def render(page: str) -> str:
    """Returns a page with its generated parts rewritten."""
    return PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]](*found[3].split())}\n\n{found[4]}", page)


def write_measured(page: Path, name: str, text: str) -> None:
    """Rewrites a measured part of a page, between `<!-- measured: NAME -->` and `<!-- end -->`."""
    part = re.compile(rf"(<!-- measured: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    page.write_text(part.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page.read_text()))


def table(headers: list[str], rows: list[list[str]]) -> str:
    """Returns a Markdown table."""
    lines = [headers, ["---"] * len(headers), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def first_keys() -> str:
    """Lists the keys of the configuration to know first."""
    from trainer.config.help import FIRST, described
    from trainer.config.root import Config

    sections = {section.path: section.keys for section in described(Config)}
    return _table_of_keys(
        [
            (f"{path}.{key.name}", *key[1:])
            for path in FIRST
            for key in sections[path]
            if key.name in FIRST[path].split()
        ]
    )


def other_keys() -> str:
    """Lists the other keys of the configuration, in a table for each section.

    Keys that repeat those of an earlier section, such as the schedules', are named with a link to that section.
    """
    from trainer.config.help import FIRST, described
    from trainer.config.root import Config

    found, earlier = [], {}
    for path, meaning, keys in described(Config):
        first = FIRST.get(path, "").split()
        paragraphs = [f"### `[{path}]`", meaning]
        if first:
            paragraphs.append(f"Above: {_names(first)}.")
        others = [key for key in keys if key.name not in first]
        same, repeated = _most_repeated(others, earlier)
        if own := [key for key in others if key not in repeated]:
            paragraphs.append(_table_of_keys(own))
        if repeated:
            names = _names(key.name for key in repeated)
            paragraphs.append(f"As in [`[{same}]`](#{same.replace('.', '').lower()}): {names}.")
        if others:
            found.append("\n\n".join(paragraphs))
        earlier[path] = keys
    return "\n\n".join(found)


def _most_repeated(keys: list[Key], earlier: dict[str, list[Key]]) -> tuple[str, list[Key]]:
    """Returns the earlier section with most of these keys, and the keys; none for fewer than half."""
    same = max(earlier, key=lambda path: sum(key in earlier[path] for key in keys), default="")
    repeated = [key for key in keys if key in earlier.get(same, [])]
    return (same, repeated) if 2 * len(repeated) > len(keys) > 2 else ("", [])


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table_of_keys(keys: Iterable[tuple[str, ...]]) -> str:
    return table(["Key", "Type", "Default", "Meaning"], [[f"`{name}`", *facts] for name, *facts in keys])


def pipeline_keys() -> str:
    """Lists every key of a pipeline file, in a table for the file and one for a step."""
    from torchx_recsys.pipelines.file import FileSection

    return _keys(FileSection)


def sweep_keys() -> str:
    """Lists every key of a sweep file."""
    from torchx_recsys.sweeps.file import SweepSection

    return _keys(SweepSection)


def _keys(section: type[Section]) -> str:
    from trainer.config.help import described

    return "\n\n".join(
        (f"`[{path}]`:\n\n" if path else "") + _table_of_keys(keys) for path, _, keys in described(section)
    )


def may_change() -> str:
    """Lists every key that may change on resume, by section."""
    from trainer.config.root import Config

    keys: dict[str, list[str]] = {}
    for section, key in _may_change(Config, ""):
        keys.setdefault(section, []).append(f"`{key}`")
    return table(["Section", "Keys"], [[f"`[{section}]`", ", ".join(names)] for section, names in keys.items()])


def _may_change(section: Any, path: str) -> Iterator[tuple[str, str]]:
    from trainer.core.section import MayChange, Section

    for name, field in section.model_fields.items():
        if MayChange in field.metadata:
            yield path, name
        named = get_origin(field.annotation) is dict
        below = get_args(field.annotation)[-1] if named else field.annotation
        if isinstance(below, type) and issubclass(below, Section):
            yield from _may_change(below, ".".join(filter(None, [path, name, "NAME" if named else ""])))


def reading_order() -> str:
    """Lists the files of the training path in reading order."""
    modules = [importlib.import_module(f"trainer.{name.replace('/', '.')}") for name in READING_ORDER]
    files = "\n".join(
        f"{number}. [`trainer/{name}.py`](../../trainer/{name}.py): {(module.__doc__ or '').partition(chr(10))[0]}"
        for number, (name, module) in enumerate(zip(READING_ORDER, modules, strict=True), 1)
    )
    lines = _lines(*(f"trainer/{name}.py" for name in READING_ORDER))
    return f"{len(READING_ORDER)} files, about {lines} lines:\n\n{files}"


def sizes() -> str:
    """Says how long each place is."""
    return ", ".join(f"`{place}/` {_lines(f'{place}/')}" for place in SIZED) + "."


def _lines(*paths: str) -> str:
    """Returns how many lines the files have whose paths begin so, in thousands, which few changes change."""
    lines = sum(text.count("\n") for name, text in read_files().items() if name.startswith(paths))
    return f"{round(lines, -3):,}"


def ready_made() -> str:
    """Lists the trainer's ready-made configurations, each with the first sentence of its comment."""
    rows = []
    for file in sorted((ROOT / "trainer" / "config" / "presets").glob("*.toml")):
        comment = " ".join(line.lstrip("# ") for line in file.read_text().partition("\n#\n")[0].splitlines())
        rows.append([f"`{file.stem}`", comment])
    return table(["Name", "What it trains on"], rows)


def components() -> str:
    """Lists every component with its arguments."""
    return "\n\n".join(
        f"## `{name}`\n\n{_component(function)}" for module in _modules() for name, function in _members(module)
    )


def component_list() -> str:
    """Lists the components, a line each."""
    rows = []
    for module in _modules():
        for name, function in _members(module):
            rows.append([f"[`{name}`](#{name.replace('.', '')})", _docs(function).short_description])
    return table(["Component", "What it does"], rows)


def _modules() -> list[ModuleType]:
    return [importlib.import_module(f"components.{name}") for name in COMPONENT_FILES]


def _members(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, function in vars(module).items():
        if inspect.isfunction(function) and inspect.signature(function).return_annotation is AppDef:
            yield f"{module.__name__.rpartition('.')[2]}.{name}", function


def _docs(function: Callable[..., Any]) -> Any:
    return parse(inspect.getdoc(function) or "")


def _component(function: Callable[..., Any]) -> str:
    docs: Docstring = _docs(function)
    example = _on_lines((docs.long_description or "").removeprefix("Example: "))
    parameters = inspect.signature(function).parameters
    job = ", ".join(f"`--{name} {parameters[name].default}`" for name in WITH_DEFAULTS if name in parameters)
    arguments = _arguments(function, _component_flag, without=JOB_ARGUMENTS)
    return (
        f"{docs.short_description}\n\n```sh\n{example}\n```\n\n{arguments}\n\n[Of the job](#arguments-of-a-job): {job}."
    )


def _on_lines(command: str) -> str:
    """Returns a command, broken before its flags where it would be cut off on a page."""
    lines = [""]
    for part in re.split(r"(?<! --) (?=-)", command):
        lines = [*lines[:-1], f"{lines[-1]} {part}"] if len(lines[-1]) + len(part) < WIDTH else [*lines, f"  {part}"]
    return " \\\n".join(lines).strip()


def job_arguments() -> str:
    """Lists the arguments that say where and how a job runs, which components share."""
    from components.dlrm import multi_node

    own = tuple(name for name in inspect.signature(multi_node).parameters if name not in JOB_ARGUMENTS)
    return _arguments(multi_node, _component_flag, without=own)


def _component_flag(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return "`-- ...`"
    return f"`-{parameter.name}`" if len(parameter.name) == 1 else f"`--{parameter.name}`"


def _trainer_flag(parameter: inspect.Parameter) -> str:
    return f"`--{parameter.name.replace('_', '-')}`"


def _arguments(
    function: Callable[..., Any], flag: Callable[[inspect.Parameter], str], without: Collection[str] = ()
) -> str:
    helps = {param.arg_name: " ".join((param.description or "").split()) for param in _docs(function).params}
    rows = [
        [flag(parameter), _python_type(parameter), _default(parameter), helps[name]]
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in without
    ]
    return table(["Argument", "Type", "Default", "Meaning"], rows)


def _default(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return "none"
    if parameter.default is parameter.empty:
        return "required"
    if parameter.name == "image":
        return "TorchX's own"
    value = parameter.default
    if value is None:
        return "unset"
    if value == "":
        return "empty"
    return f"`{' '.join(map(str, value)) if isinstance(value, tuple) else value}`"


def _python_type(parameter: inspect.Parameter) -> str:
    kind = next((kind for kind in get_args(parameter.annotation) if kind is not type(None)), parameter.annotation)
    if get_origin(parameter.annotation) in (list, tuple):
        return f"{_name(kind)}s"
    if isinstance(kind, str):
        return ", ".join(f"`{choice}`" for choice in get_args(parameter.annotation))
    return _name(kind)


def _name(kind: Any) -> str:
    if get_origin(kind):
        return f"{_name(get_args(kind)[0])}s" if get_origin(kind) is list else "map"
    return {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}[kind.__name__]


def sources() -> str:
    """Lists every command that makes a data set, with the flags that its component does not have."""
    components = importlib.import_module("components.data")
    parts = []
    for name in SOURCES:
        function = getattr(importlib.import_module(f"torchx_recsys.apps.datasets.{name}"), name)
        about = f"## `{name}`\n\n{_docs(function).short_description}\n\n{_docs(function).long_description}"
        shared = inspect.signature(getattr(components, name)).parameters
        arguments = f"The arguments are those of [`data.{name}`](../reference/components.md#data{name})"
        if inspect.signature(function).parameters.keys() - shared.keys():
            arguments += f", and after `--`:\n\n{_arguments(function, _trainer_flag, without=shared)}"
        else:
            arguments += "."
        parts.append(f"{about}\n\n{arguments}")
    return "\n\n".join(parts)


def commands() -> str:
    """Lists every command of the trainer."""
    from trainer.commands import COMMANDS

    rows = []
    for name, (_, line, _) in COMMANDS.items():
        usage, _, about = line.partition(": ")
        rows.append([f"`python -m trainer {name} {usage}`", about])
    return table(["Command", "What it does"], rows)


def metrics() -> str:
    """Lists every metric by name."""
    from trainer.metrics.registry import METRICS, METRICS_OF_KIND

    directions = {True: "higher", False: "lower", None: ""}
    rows = [
        [f"`{name}`", _metric(metric), ", ".join(metric.takes), directions[metric.higher_is_better], _memory(metric)]
        for name, metric in [*METRICS.items(), *chain.from_iterable(one.items() for one in METRICS_OF_KIND.values())]
    ]
    return table(["Name", "What it is", "Takes", "Better", "Memory of a rank"], rows)


def _metric(metric: Any) -> str:
    return _docs(find_by_name("", metric.function, {})).short_description.removeprefix("Returns ").rstrip(".")


GROWING = {
    "GroupedSamples": "20 bytes a sample",
    "AllSamples": "20 bytes a sample",
    "ClassRanks": "8 bytes a class",
    "ClassHistograms": "3 MiB a class",
    "ItemRanks": "8 bytes an item, and its vector",
    "LogitHistogram": "3 MiB",
}
"""Memory of the accumulators whose state grows; of the others it is measured."""


def _memory(metric: Any) -> str:
    if said := GROWING.get(metric.accumulator.rpartition(":")[2]):
        return said
    bytes_ = find_by_name("", metric.accumulator, {})(torch.device("cpu")).state.nbytes
    return f"{bytes_ / 2**20:g} MiB" if bytes_ >= 2**20 else f"{bytes_} bytes"


def scheduler_options(scheduler: str) -> str:
    """Lists every option of a scheduler, in the form of `-cfg KEY=VALUE`."""
    options = get_scheduler_factories()[scheduler]("docs").run_opts()
    return table(["Option", "Type", "Default", "Meaning"], [_option(name, option) for name, option in options])


def _option(name: str, option: runopt) -> list[str]:
    if option.is_required:
        default = "required"
    elif option.default in (None, "", [], {}):
        default = "unset"
    else:
        default = f"`{option.default}`"
    return [f"`{name}`", _name(option.opt_type), default, " ".join(option.help.replace("``", "`").split())]


def resources() -> str:
    """Lists every host with its figures."""
    from torchx_recsys.planner.hardware import HOSTS

    rows = [[f"`{name}`", *_host(host)] for name, host in HOSTS.items() if not name.endswith(("_4", "_2", "_1"))]
    headers = ["Name", "Cores", "Host GiB", "GPUs", "GPU GiB", "HBM", "NVLink", "TFLOPS", "Network", "Figures"]
    return table(headers, rows)


def _host(host: Any) -> list[str]:
    gpu = host.gpu
    of_gpu = (
        [
            f"{gpu.memory_gib}",
            f"{gpu.hbm_gb_per_second:,.0f}",
            f"{gpu.nvlink_gb_per_second:,.0f}",
            f"{gpu.fp32_tflops:g} / {gpu.tf32_tflops:g} / {gpu.half_tflops:g}",
        ]
        if gpu
        else ["", "", "", ""]
    )
    network = f"{host.network_gb_per_second:g}" if host.network_gb_per_second else ""
    sources = [f"[host]({host.source})", *([f"[GPU]({gpu.source})"] if gpu else [])]
    return [f"{host.cpu}", f"{host.memory_gib:,}", f"{host.gpus}", *of_gpu, network, ", ".join(sources)]


PARTS: dict[str, Callable[..., str]] = {
    part.__name__.replace("_", "-"): part
    for part in (
        first_keys,
        other_keys,
        pipeline_keys,
        sweep_keys,
        may_change,
        reading_order,
        sizes,
        ready_made,
        components,
        component_list,
        job_arguments,
        sources,
        commands,
        metrics,
        scheduler_options,
        resources,
    )
}

if __name__ == "__main__":
    main()
