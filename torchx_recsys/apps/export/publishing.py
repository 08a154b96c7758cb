"""Publishing: checks the rules of [publish] for a run over segments, and rolls back."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from math import isfinite
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from torchx_recsys.apps.check_data.shift import measure_shift
from torchx_recsys.apps.export.directory import CURRENT, MANIFEST, alone_in, current_or_none, read_chain, read_current
from torchx_recsys.apps.export.load import ColumnError, load
from trainer.checkpoint.store import Checkpoint, FileEntry
from trainer.config.data import DataConfig
from trainer.config.train import PublishConfig
from trainer.core.errors import InputError, nearest, some_of
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import place, without_secrets
from trainer.core.storage import named
from trainer.data.segments import data_of_segment
from trainer.metrics.registry import built_in

REFUSED = "refused.jsonl"
ANYWAY = "--anyway True publishes all the same"
Line = Mapping[str, Any]


class NotPublished(InputError):
    """A rule of [publish] that does not hold.

    Args:
        rule: The key of the rule.
        segment: The segment that breaks it.
        why: The reason, with its figures.
    """

    def __init__(self, rule: str, segment: str, why: str) -> None:
        super().__init__(f"not published: segment {segment}: {why}; {ANYWAY}")
        self.rule, self.segment, self.why = rule, segment, why


def segments_of(run: RunDirectory, checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Returns the segments that a checkpoint was trained on, as in segments.jsonl; the last may be partial.

    If segments.jsonl lacks the last line, it is made from the checkpoint and evaluations.jsonl.
    """
    place = checkpoint.train_state.get("segment")
    if not place:
        return []
    known = [line for line in run.read_records("segments.jsonl") if line["samples"]]
    lines = [line for line in known if line["number"] <= place["number"]]
    if not lines or lines[-1]["segment"] != place["name"]:
        before = None
        for line in run.read_records("evaluations.jsonl"):
            if (line.pop("split"), line.pop("step")) == ("validation", place["first_step"]):
                before = line
        lines.append({**place, "segment": place["name"], "step": place["last_step"], "before": before})
    return lines


def check_rules(rules: PublishConfig, lines: Sequence[Line], data: DataConfig) -> None:
    """Refuses a model whose newest segment breaks a rule.

    Args:
        rules: The rules.
        lines: The segments of its run that have rows, as in segments.jsonl.
        data: Where the segments are.

    Raises:
        NotPublished: A rule does not hold; the message has its figures.
        InputError: A rule cannot be used with this run, or a segment cannot be read.
    """
    if not rules.model_dump(exclude_defaults=True):
        return
    if not lines:
        raise InputError("[publish] has rules for segments, but the run has none yet; leave them out, or train on one")
    *earlier, newest = lines
    before = earlier[-rules.window :]
    checks = {
        "contents": partial(_old, earlier, newest),
        "least_samples": partial(_few, rules, before, newest),
        "most_samples": partial(_many, rules, before, newest),
        "shift_by": partial(_shifted, rules, data, before, newest),
        "label_rate_by": partial(_off_usual_rate, rules, before, newest),
        "calibration_by": partial(_uncalibrated, rules, newest),
        "metric": partial(_worse, rules, before, newest),
    }
    for rule, check in checks.items():
        if why := check():
            raise NotPublished(rule, newest["segment"], why)


def _old(earlier: Sequence[Line], newest: Line) -> str:
    same = [one["segment"] for one in earlier if one.get("contents") and one["contents"] == newest.get("contents")]
    return f"its files are those of segment {same[0]} again" if same else ""


def _few(rules: PublishConfig, before: Sequence[Line], newest: Line) -> str:
    if rules.least_samples is None or not before:
        return ""
    usual = mean(line["samples"] for line in before)
    if newest["samples"] >= rules.least_samples * usual:
        return ""
    found = f"{newest['samples']:,} samples, of {usual:,.0f} before"
    return f"has {found}, and publish.least_samples is {rules.least_samples:g}"


def _many(rules: PublishConfig, before: Sequence[Line], newest: Line) -> str:
    if rules.most_samples is None or not before:
        return ""
    usual = mean(line["samples"] for line in before)
    if newest["samples"] <= rules.most_samples * usual:
        return ""
    found = f"{newest['samples']:,} samples, after {usual:,.0f} before"
    return f"has {found}, and publish.most_samples is {rules.most_samples:g}"


def _shifted(rules: PublishConfig, data: DataConfig, before: Sequence[Line], newest: Line) -> str:
    if not (rules.shift_by or rules.shift_of) or not before:
        return ""
    last = before[-1]["segment"]
    parts = [data_of_segment(data, name, "test").test for name in (last, newest["segment"])]
    indices = measure_shift("publish.shift_by", parts, data).indices  # the greatest first
    if unknown := next((name for name in rules.shift_of if name not in indices), None):
        raise InputError(
            f"publish.shift_of has '{unknown}', which is no column of a feature{nearest(unknown, indices)}"
        )
    for column, index in indices.items():
        key = f"shift_of.{column}" if column in rules.shift_of else "shift_by"
        limit = rules.shift_of.get(column, rules.shift_by)
        if limit is not None and index > limit:
            return f"{column} shifted by {index:.2f} from segment {last}, and publish.{key} is {limit:g}"
    return ""


def _off_usual_rate(rules: PublishConfig, before: Sequence[Line], newest: Line) -> str:
    by = rules.label_rate_by
    if by is None:
        return ""
    for name, value in _all(newest, "label_rate", "label_rate_by").items():
        if (earlier := _values(before, name)) and not mean(earlier) / by <= value <= mean(earlier) * by:
            return f"{name} is {value:.5f}, after {mean(earlier):.5f} before, and publish.label_rate_by is {by:g}"
    return ""


def _uncalibrated(rules: PublishConfig, newest: Line) -> str:
    by = rules.calibration_by
    if by is None:
        return ""
    for name, value in _all(newest, "calibration", "calibration_by").items():
        if not 1 / by <= value <= by:  # also if NaN
            return f"{name} is {value:.5f}, and publish.calibration_by is {by:g}"
    return ""


def _worse(rules: PublishConfig, before: Sequence[Line], newest: Line) -> str:
    if rules.metric is None:
        return ""
    value, earlier = _value(newest, rules.metric, "metric"), _values(before, rules.metric)
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


def _value(line: Line, metric: str, rule: str) -> float:
    found = _before(line, rule)
    if metric not in found:
        raise InputError(f"publish.{rule} needs '{metric}', which evaluate.metrics has not; it has: {some_of(found)}")
    return found[metric]


def _before(line: Line, rule: str) -> Mapping[str, float]:
    """Returns the metrics of a segment before training on it."""
    if line["before"] is None:
        raise NotPublished(
            rule,
            line["segment"],
            f"publish.{rule} needs the metrics before training on it, which were in evaluations.jsonl and are lost; "
            "train on the next segment",
        )
    return line["before"]


def _values(lines: Sequence[Line], metric: str) -> list[float]:
    found = ((line["before"] or {}).get(metric) for line in lines)
    return [value for value in found if value is not None and isfinite(value)]


def _all(line: Line, metric: str, rule: str) -> dict[str, float]:
    """Returns a metric for all tasks."""
    found = {name: value for name, value in _before(line, rule).items() if name.partition("/")[0] == metric}
    return found or {metric: _value(line, metric, rule)}


def check_beside_current(rules: PublishConfig, folder: Path, to: str, segment: str) -> None:
    """Refuses an export whose size or answers differ too much from the export that TO/current.json names.

    Args:
        rules: The rules.
        folder: The export, whole and not published yet.
        to: Directory of exports, any fsspec URL.
        segment: The newest segment of its run.

    Raises:
        NotPublished: A rule does not hold.
        InputError: The export before cannot be read, or takes other columns.
    """
    if rules.size_by is None and rules.drift_by is None:
        return
    target = RunDirectory(to, "--to")
    with named("--to", to):
        current = current_or_none(target)
        if current is None:
            return
        try:
            whole, parity = read_chain(target.fs, target.path(current))[0], target.read_json(current, "parity.json")
        except ValueError as error:
            raise InputError(f"[publish] compares with {without_secrets(error)}; {ANYWAY}") from error
    if parity is None or not {"columns", "answers"} <= parity.keys():
        raise InputError(
            f"[publish] compares with {without_secrets(target.url_of(current))}, which is not whole; {ANYWAY}"
        )
    # All exports of a chain have the same size when they are whole.
    if why := _off_size(rules, json.loads((folder / MANIFEST).read_text())["files"], whole.files, current):
        raise NotPublished("size_by", segment, why)
    if why := _drifted(rules, folder, parity, current):
        raise NotPublished("drift_by", segment, why)


def _off_size(rules: PublishConfig, new: Mapping[str, FileEntry], old: Mapping[str, FileEntry], current: str) -> str:
    by = rules.size_by
    now, then = (sum(entry["bytes"] for entry in files.values()) for files in (new, old))
    if by is None or then / by <= now <= then * by:
        return ""
    return f"the export has {now:,} bytes, after {then:,} of {current}, and publish.size_by is {by:g}"


def _drifted(rules: PublishConfig, folder: Path, parity: Mapping[str, Any], current: str) -> str:
    """Compares the answers of two exports to the same rows: the parity rows of the one before."""
    if rules.drift_by is None:
        return ""
    compared = f"publish.drift_by compares with {current}, which"
    try:
        answers = load(folder)(parity["columns"])
    except ColumnError as error:
        raise InputError(f"{compared} takes other columns: {error}; {ANYWAY}") from error
    for name, before in parity["answers"].items():
        if name not in answers:
            raise InputError(f"{compared} has another output, {name}; {ANYWAY}")
        drift = float(np.abs(np.asarray(answers[name]) - np.asarray(before)).mean())
        if not drift <= rules.drift_by:  # also if NaN
            rows = f"{name} of {len(before)} rows of {current}"
            return f"{rows} differs by {drift:.5f} on average, and publish.drift_by is {rules.drift_by:g}"
    return ""


@contextmanager
def refusals_noted(to: str, step: int) -> Iterator[None]:
    """Adds a line to TO/refused.jsonl if a rule does not hold in the block.

    Args:
        to: Directory of exports, any fsspec URL.
        step: The step of the checkpoint.
    """
    try:
        yield
    except NotPublished as refused:
        note = {"step": step, "segment": refused.segment, "rule": refused.rule, "figures": refused.why}
        target = RunDirectory(to, "--to")
        with named("--to", to), alone_in(target):
            lines = target.read_records(REFUSED)
            if not any(note.items() <= line.items() for line in lines):  # not if the same command ran again
                lines.append({"time": datetime.now().astimezone().isoformat(timespec="seconds"), **note})
                target.write(REFUSED, "".join(f"{json.dumps(line)}\n" for line in lines))
        raise


def rollback(to: str) -> None:
    """Points TO/current.json at the export before the current one.

    Args:
        to: Directory of exports, any fsspec URL.

    Raises:
        InputError: There is no current export, or no earlier one.
    """
    target = RunDirectory(to, "--to")
    with named("--to", to):
        if read_current(target) is None:
            raise InputError(f"--to is {place(to)}, where nothing is exported; name a directory of exports")
        with alone_in(target):
            current, earlier = _go_back(target)
    print(f"{without_secrets(target.url_of(CURRENT))} names {earlier}, before it was {current}")


def _go_back(target: RunDirectory) -> tuple[str, str]:
    """Points current.json at the previous export; returns the names of the current and the previous one."""
    current = str(read_current(target))
    folders = target.fs.glob(target.path("step-*", MANIFEST))
    steps = sorted(int(path.split("/")[-2].removeprefix("step-")) for path in folders)
    earlier = [step for step in steps if step < int(current.removeprefix("step-")) and _is_linked(target, step)]
    if not earlier:
        raise InputError(f"--to is '{without_secrets(target.url)}', which has no export before {current}")
    target.write_json(CURRENT, {"directory": f"step-{earlier[-1]}"})
    return current, f"step-{earlier[-1]}"


def _is_linked(target: RunDirectory, step: int) -> bool:
    """Returns whether the exports that an export changes are still there."""
    try:
        return bool(read_chain(target.fs, target.path(f"step-{step}")))
    except ValueError:
        return False
