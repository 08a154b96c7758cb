"""A pipeline file in TOML: steps, each a component with its arguments, and values that steps share."""

import string
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
from pydantic import Field
from torchx.schedulers import get_scheduler_factories

from torchx_recsys.pipelines.arguments import Signature
from torchx_recsys.pipelines.jobs import Job, Options
from trainer.core.errors import InputError, StorageError, StorageNotFoundError, nearest
from trainer.core.secrets import place, without_secrets
from trainer.core.section import Section, Tree, validate
from trainer.core.storage import read_text

READY_MADE = Path(__file__).parent
# Options of schedulers that a pipeline sets itself.
SET_HERE = {
    "after": "name the steps that must succeed first in the step's own key `after`",
    "after_any": "a step of a pipeline starts only after success; leave it out",
    "detach": "the jobs of a pipeline outlive its shell anyway; leave it out",
}
Scalar = str | int | float | bool


class StepSection(Section):
    """A step: one job. Its name is the key."""

    component: str
    """Component, as `torchx run` takes it."""

    arguments: dict[str, Any] = {}
    """Arguments of the component by name, in the types of TOML; what follows `--` is a list under its name."""

    after: list[str] = []
    """Steps that must succeed first, beside those whose arguments this one takes."""

    options: Options = {}
    """Options of schedulers, `options.slurm = { time = "4:00:00" }`, beside those of all steps."""


class FileSection(Section):
    """The whole file."""

    out: str
    """Directory of the pipeline, a path or an fsspec URL. `pipeline/` in it holds the record."""

    values: dict[str, Scalar] = {}
    """Texts, numbers and booleans by name, which `--set` can change."""

    arguments: dict[str, Any] = {}
    """Arguments of every step whose component has them, such as `image`."""

    options: Options = {}
    """Options of schedulers for every step."""

    steps: dict[str, StepSection] = Field(min_length=1)
    """The steps by name."""


@dataclass(frozen=True, kw_only=True)
class Step(Job):
    """A job of a pipeline, with all values from other steps filled in.

    Attributes:
        config: The configuration that it names, unless another step makes it.
        after: Names of the steps that must succeed first.
    """

    config: str | None
    after: list[str]


@dataclass(frozen=True)
class Pipeline:
    """A pipeline that can be submitted.

    Attributes:
        out: Its directory, a path or an fsspec URL.
        steps: Its steps by name, each after the steps that it needs.
        graph: An edge from each step to the steps that need it.
    """

    out: str
    steps: dict[str, Step]
    graph: nx.DiGraph

    def with_followers(self, name: str) -> set[str]:
        """Returns the names of a step and of all that need it, directly or not."""
        return {name, *nx.descendants(self.graph, name)}

    def drawing(self) -> list[str]:
        """Returns lines that show which step follows which, without detours."""
        shown = nx.DiGraph()
        shown.add_nodes_from(self.steps)
        reduced = nx.transitive_reduction(self.graph)
        shown.add_edges_from((before, name) for before in self.steps for name in self.steps if name in reduced[before])
        return [*nx.generate_network_text(shown)]


def read_pipeline(name: str, changes: Mapping[str, str], defaults: Mapping[str, Mapping[str, str]]) -> Pipeline:
    """Reads a pipeline and fills in all values.

    Args:
        name: A file on any fsspec URL, or the name of a ready-made one.
        changes: Other values than the file's, as text, by name.
        defaults: Defaults of components' arguments beside their own, by component.

    Raises:
        InputError: It cannot be read, or something in it is wrong; the message names the key.
    """
    source = f"pipeline '{without_secrets(name)}': "
    file = validate(FileSection, _read(name), lambda _: source)
    try:
        return _Reader(without_secrets(name), file, _changed(file, changes), defaults).pipeline()
    except InputError as error:
        raise InputError(f"{source}{error}") from error


def _read(name: str) -> Tree:
    ready_made = {path.stem: path for path in READY_MADE.glob("*.toml")}
    try:
        return tomllib.loads(read_text(str(ready_made.get(name, name))))
    except StorageNotFoundError as error:
        raise InputError(
            f"pipeline {place(name)}: no such file; ready-made ones: {', '.join(sorted(ready_made))}"
        ) from error
    except (StorageError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"pipeline '{without_secrets(name)}' cannot be read: {error}") from error


def _changed(file: FileSection, changes: Mapping[str, str]) -> dict[str, Scalar]:
    """Returns the values of a file, changed by the command line; each keeps its type in the file."""
    values: dict[str, Scalar] = {**file.values, "out": file.out}
    for name, text in changes.items():
        if name not in values:
            raise InputError(f"--set {name}={text}: unknown value '{name}'{nearest(name, values)}")
        values[name] = _of_type(type(values[name]), f"--set {name}={text}", text)
    return values


def _of_type(kind: type, flag: str, text: str) -> Scalar:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise InputError(f"{flag}: must be true or false")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError as error:
        raise InputError(f"{flag}: must be {'a whole number' if kind is int else 'a number'}") from error


class _Reader:
    """Fills in the steps of a file, in their order."""

    def __init__(
        self, source: str, file: FileSection, values: dict[str, Scalar], defaults: Mapping[str, Mapping[str, str]]
    ) -> None:
        self._source = source
        self._file = file
        self._values = values
        self._signatures = {
            name: Signature.of(step.component, f"steps.{name}.", defaults.get(step.component, {}))
            for name, step in file.steps.items()
        }
        self._filled: dict[str, dict[str, Any]] = {}

    def pipeline(self) -> Pipeline:
        self._check_names()
        needed = {name: self._needed_by(name) for name in self._file.steps}
        graph = nx.DiGraph()
        graph.add_nodes_from(needed)
        graph.add_edges_from((before, name) for name, names in needed.items() for before in names)
        if circle := next(nx.simple_cycles(graph), None):
            raise InputError(f"steps wait for each other in a circle: {' -> '.join([*circle, circle[0]])}")
        place = {name: number for number, name in enumerate(needed)}
        order = nx.lexicographical_topological_sort(graph, key=place.__getitem__)
        steps = {name: self._step(name, needed[name]) for name in order}
        return Pipeline(str(self._values["out"]), steps, graph)

    def _check_names(self) -> None:
        for kind, names in (("values", self._file.values), ("steps", self._file.steps)):
            for name in names:
                if not name.isidentifier() or not name.isascii():
                    raise InputError(f"{kind}.{name}: a name is made of letters, digits and '_', a letter first")
        if "out" in self._file.values:
            raise InputError("values.out: the file's own key `out` is this value; leave it out")
        known = {argument for signature in self._signatures.values() for argument in signature.parameters}
        for argument in self._file.arguments:
            if argument not in known:
                raise InputError(f"arguments.{argument}: no step has such an argument{nearest(argument, known)}")
        sections = {"options": self._file.options} | {
            f"steps.{name}.options": step.options for name, step in self._file.steps.items()
        }
        for key, options in sections.items():
            _check_options(key, options)

    def _needed_by(self, name: str) -> list[str]:
        """Returns the steps that a step needs: the steps that it names, and the steps whose arguments it takes."""
        step, key = self._file.steps[name], f"steps.{name}"
        for before in step.after:
            if before not in self._file.steps:
                raise InputError(f"{key}.after: unknown step '{before}'{nearest(before, self._file.steps)}")
        taken = []
        for path, text in _texts(self._arguments(name), f"{key}.arguments"):
            for field in _fields(path, text):
                before, dot, _ = field.partition(".")
                if dot and before not in self._file.steps:
                    raise InputError(f"{path}: {{{field}}}: unknown step '{before}'{nearest(before, self._file.steps)}")
                taken += [before] if dot else []
        return [*dict.fromkeys((*step.after, *taken))]

    def _arguments(self, name: str) -> dict[str, Any]:
        """Returns the arguments of a step in the file, with the arguments for all steps that its component takes."""
        known = self._signatures[name].parameters
        shared = {argument: value for argument, value in self._file.arguments.items() if argument in known}
        return shared | self._file.steps[name].arguments

    def _step(self, name: str, after: list[str]) -> Step:
        step, key = self._file.steps[name], f"steps.{name}.arguments"
        filled = {
            argument: _filled(value, f"{key}.{argument}", self._value)
            for argument, value in self._arguments(name).items()
        }
        words = self._signatures[name].words(filled)
        self._filled[name] = filled
        given = str(self._arguments(name).get("config", ""))
        is_made = any("." in field for field in _fields(key, given))
        options = {
            scheduler: self._file.options.get(scheduler, {}) | step.options.get(scheduler, {})
            for scheduler in {*self._file.options, *step.options}
        }
        config = str(filled["config"]) if given and not is_made else None
        return Step(
            name=name,
            key=f"pipeline '{self._source}': steps.{name}",
            component=step.component,
            words=words,
            options=options,
            config=config,
            after=after,
        )

    def _value(self, path: str, field: str) -> Any:
        """Returns the value of a name in braces."""
        step, dot, argument = field.partition(".")
        if not dot:
            if field not in self._values:
                raise InputError(f"{path}: {{{field}}}: unknown value '{field}'{nearest(field, self._values)}")
            return self._values[field]
        value = self._signatures[step].value(argument, self._filled[step], f"{path}: {{{field}}}")
        if value is None or value == "":
            raise InputError(f"{path}: {{{field}}}: not set; set steps.{step}.arguments.{argument}")
        if "${" in str(value):
            raise InputError(
                f"{path}: {{{field}}} is '{value}', known only to the job; set steps.{step}.arguments.{argument}"
            )
        return value


def _check_options(key: str, options: Options) -> None:
    known = get_scheduler_factories()
    for scheduler, table in options.items():
        if scheduler not in known:
            raise InputError(f"{key}.{scheduler}: unknown scheduler '{scheduler}'{nearest(scheduler, known)}")
        for option in table:
            if option in SET_HERE:
                raise InputError(f"{key}.{scheduler}.{option}: {SET_HERE[option]}")


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields all texts below a value, each with its key."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, below in value.items():
            yield from _texts(below, f"{path}.{key}")
    elif isinstance(value, list):
        for below in value:
            yield from _texts(below, path)


def _fields(path: str, text: str) -> list[str]:
    """Returns the names in braces in a text; doubled braces stand for themselves."""
    try:
        parts = [*string.Formatter().parse(text)]
    except ValueError as error:
        raise InputError(f"{path} is '{text}': {error}; write {{{{ for a brace") from error
    for _, field, form, conversion in parts:
        if field is not None and (form or conversion or not field):
            raise InputError(
                f"{path} is '{text}': braces hold the name of a value, or STEP.ARGUMENT; write {{{{ for a brace"
            )
    return [field for _, field, _, _ in parts if field]


def _filled(value: Any, path: str, lookup: Callable[[str, str], Any]) -> Any:
    """Returns a value with all names in braces replaced; a text that is a single name becomes its value."""
    if isinstance(value, dict):
        return {key: _filled(below, f"{path}.{key}", lookup) for key, below in value.items()}
    if isinstance(value, list):
        return [_filled(below, path, lookup) for below in value]
    if not isinstance(value, str):
        return value
    fields = _fields(path, value)
    if len(fields) == 1 and value == f"{{{fields[0]}}}":
        return lookup(path, fields[0])
    parts = string.Formatter().parse(value)
    return "".join(text + (str(lookup(path, field)) if field else "") for text, field, _, _ in parts)
