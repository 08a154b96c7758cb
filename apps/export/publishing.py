"""Whether the model of a run over segments may be published, by the rules of [publish], and the way back."""

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import mean
from typing import Any

from apps.export.directory import CURRENT, MANIFEST
from trainer.config.publish import PublishConfig
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.storage import named
from trainer.metrics.registry import built_in

Line = Mapping[str, Any]


def check_rules(rules: PublishConfig, lines: Sequence[Line]) -> None:
    """Refuses a model whose newest segment breaks a rule.

    Args:
        rules: The rules.
        lines: The segments of its run that have rows, as in segments.jsonl.

    Raises:
        InputError: A rule does not hold; the message has its figures.
    """
    if not rules.model_dump(exclude_defaults=True):
        return
    if not lines:
        raise InputError("[publish] has rules for segments, but the run has none yet; leave them out, or train on one")
    *before, newest = lines
    before = before[-rules.window :]
    broken = (
        _few(rules, before, newest),
        _shifted(rules, before, newest),
        _off(rules, newest),
        _worse(rules, before, newest),
    )
    if why := next(filter(None, broken), ""):
        raise InputError(f"not published: segment {newest['segment']}: {why}; --anyway True publishes all the same")


def _worse(rules: PublishConfig, before: Sequence[Line], newest: Line) -> str:
    if rules.metric is None:
        return ""
    value, earlier = _value(newest, rules.metric, "publish.metric"), _values(before, rules.metric)
    if not isfinite(value):
        return f"{rules.metric} is {value}"
    if not earlier:
        return ""
    known = built_in(rules.metric.partition("/")[0])
    if known is None or known[0].higher_is_better is None:
        raise InputError(f"publish.metric is '{rules.metric}', which is neither better when higher nor when lower")
    usual = mean(earlier)
    worse = usual - value if known[0].higher_is_better else value - usual
    if worse <= rules.worse_by:
        return ""
    return (
        f"{rules.metric} is {value:.5f}, {worse:.5f} worse than {usual:.5f} on the {len(earlier)} before, and "
        f"publish.worse_by is {rules.worse_by:g}"
    )


def _off(rules: PublishConfig, newest: Line) -> str:
    by = rules.calibration_by
    if by is None:
        return ""
    for name, value in _all(newest, "calibration", "publish.calibration_by").items():
        if not 1 / by <= value <= by:  # NaN, too
            return f"{name} is {value:.5f}, and publish.calibration_by is {by:g}"
    return ""


def _shifted(rules: PublishConfig, before: Sequence[Line], newest: Line) -> str:
    by = rules.label_rate_by
    if by is None:
        return ""
    for name, value in _all(newest, "label_rate", "publish.label_rate_by").items():
        if (earlier := _values(before, name)) and not mean(earlier) / by <= value <= mean(earlier) * by:
            return f"{name} is {value:.5f}, after {mean(earlier):.5f} before, and publish.label_rate_by is {by:g}"
    return ""


def _few(rules: PublishConfig, before: Sequence[Line], newest: Line) -> str:
    if rules.least_samples is None or not before:
        return ""
    usual = mean(line["samples"] for line in before)
    if newest["samples"] >= rules.least_samples * usual:
        return ""
    found = f"{newest['samples']:,} samples, of {usual:,.0f} before"
    return f"has {found}, and publish.least_samples is {rules.least_samples:g}"


def _value(line: Line, metric: str, key: str) -> float:
    if metric not in line["before"]:
        raise InputError(f"{key} needs '{metric}', which evaluate.metrics has not; it has: {', '.join(line['before'])}")
    return line["before"][metric]


def _values(lines: Sequence[Line], metric: str) -> list[float]:
    found = (line["before"].get(metric) for line in lines)
    return [value for value in found if value is not None and isfinite(value)]


def _all(line: Line, metric: str, key: str) -> dict[str, float]:
    """Returns a metric of all tasks."""
    found = {name: value for name, value in line["before"].items() if name.partition("/")[0] == metric}
    return found or {metric: _value(line, metric, key)}


def rollback(to: str) -> None:
    """Points TO/current.json at the export before the one that it names.

    Args:
        to: Directory of exports, any fsspec URL.

    Raises:
        InputError: There is no export, or none before.
    """
    target = RunDirectory(to, "--to")
    with named("--to", to):
        current = (target.read_json(CURRENT) or {}).get("directory")
        if current is None:
            raise InputError(f"--to is '{without_secrets(to)}', where nothing is exported; name a directory of exports")
        folders = target.fs.glob(target.path("step-*", MANIFEST))
        steps = sorted(int(path.split("/")[-2].removeprefix("step-")) for path in folders)
        earlier = [step for step in steps if step < int(current.removeprefix("step-"))]
        if not earlier:
            raise InputError(f"--to is '{without_secrets(to)}', which has no export before {current}")
        target.write_json(CURRENT, {"directory": f"step-{earlier[-1]}"}, durable=True)
    print(f"{without_secrets(target.url_of(CURRENT))} names step-{earlier[-1]}, before it was {current}")
