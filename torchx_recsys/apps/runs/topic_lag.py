"""How far a run over the segments of a topic is behind it, by the manifests of the segments."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from trainer.config.data import DataConfig
from trainer.core.console import plural
from trainer.core.errors import some_of
from trainer.core.run_directory import RunDirectory
from trainer.data.segments import is_left_out, names_of_segments
from trainer.data.stream.lag import Lag, Manifests, lag_behind

FACTS = "segments-stream.jsonl"
READ_AT_ONCE = 1000  # maximum number of segments, the newest, whose manifests a command reads


@dataclass(frozen=True, kw_only=True)
class CutSegment:
    """A segment as its manifest describes it.

    Attributes:
        segment: Its name.
        rows: Its rows.
        late: Records with an earlier event time than the newest of the segments before.
        left_out: Records that could not be read.
        tombstones: Records without a value.
        behind: Records that the topic had after it when it was cut.
        last_event: Newest event time of it and the segments before, in seconds since 1970; None without records.
        cut_at: Time at which it was cut, in seconds since 1970.
    """

    segment: str
    rows: int
    late: int
    left_out: int
    tombstones: int
    behind: int
    last_event: float | None
    cut_at: float


@dataclass(frozen=True, kw_only=True)
class TopicLag:
    """How far a run is behind a topic.

    Attributes:
        segments: The segments that it was trained on, by name.
        now: How far it is behind by the manifests that are there now; None if there are none.
        newest: The newest segment that is cut.
    """

    segments: Mapping[str, CutSegment]
    now: Lag | None
    newest: str

    def counts(self) -> dict[str, dict[str, str]]:
        """Returns the columns of a table by title, each cell by segment; a column without any number is empty."""
        of = {"late": "late", "left out": "left_out", "tombstones": "tombstones", "records behind": "behind"}
        return {
            title: {name: f"{getattr(one, key):,}" for name, one in self.segments.items() if getattr(one, key)}
            for title, key in of.items()
        }

    def seconds_behind(self, times: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        """Returns the seconds from the newest event of each segment until it was cut and until other times of it.

        Args:
            times: Times in seconds since 1970, by what was done then and by segment.
        """
        found = {"cut": {name: one.cut_at for name, one in self.segments.items()}, **times}
        events = {name: one.last_event for name, one in self.segments.items() if one.last_event is not None}
        return {
            what: {name: of[name] - event for name, event in events.items() if name in of} for what, of in found.items()
        }

    def summary(self) -> list[list[str]]:
        """Returns rows of a table: how far the run is behind now."""
        if self.now is None:
            return []
        lag, newest = self.now, self.now.newest_event
        cut = f"{plural(lag.segments, 'segment')} with {plural(lag.cut_records, 'record')} cut and not trained on"
        rows = [["behind", f"{cut}; {plural(lag.uncut_records, 'record')} after {self.newest} when that was cut"]]
        if newest is not None:
            now, at = datetime.now(UTC).timestamp(), datetime.fromtimestamp(newest, UTC).isoformat(" ", "seconds")
            rows.append(["newest event trained on", f"{at}, {now - newest:,.0f} s ago"])
        return rows


def topic_lag(run: RunDirectory, data: DataConfig, names: Sequence[str]) -> TopicLag:
    """Returns how far a run is behind its topic; reads each manifest once in the life of the run, the newest first.

    Args:
        run: The run directory, which gets the facts of the manifests.
        data: The data section, of data.reader 'kafka'.
        names: The segments that the run was trained on.

    Raises:
        InputError: A manifest is damaged.
        StorageError: The storage cannot be read now.
    """
    assert data.segments.path
    there, manifests = names_of_segments(data.segments), Manifests(data.segments.path)
    known = {line["segment"]: CutSegment(**line) for line in run.read_records(FACTS)}
    new = [name for name in dict.fromkeys(names) if name not in known]
    if gone := [name for name in new if name not in there]:
        print(f"without a manifest, so that nothing is known of their lag: {some_of(gone)}")
    for name in [name for name in new if name not in gone][-READ_AT_ONCE:]:
        found = manifests.of(name)
        of_manifest = ("rows", "late", "left_out", "tombstones", "behind", "last_event", "cut_at")
        known[name] = CutSegment(segment=name, **{key: getattr(found, key) for key in of_manifest})
        manifests.forget(())
    if new:
        lines = (json.dumps(asdict(known[name])) for name in sorted(known))
        run.write(FACTS, "".join(f"{line}\n" for line in lines))
    ahead = [name for name in there if not is_left_out(data.segments, name)]
    now = None if set(names) & set(gone) else lag_behind(manifests, ahead, max(names))
    return TopicLag(segments=known, now=now, newest=max([*ahead, max(names)]))
