"""How far training is behind a topic, from manifests, beside a count of all their offsets."""

import pyarrow as pa
import pytest
from hand_cut import HandCut

from trainer.core.errors import InputError
from trainer.data.stream.lag import Manifests, lag_behind
from trainer.data.stream.manifest import Manifest

ROWS = (100, 37, 64, 250)
BEHIND = (5, 0, 300, 12)


@pytest.fixture
def cut(tmp_path):
    """Four segments of a topic."""
    cut = HandCut(tmp_path, partitions=3)
    for number, (rows, behind) in enumerate(zip(ROWS, BEHIND, strict=True)):
        cut.add(pa.table({"id": range(rows)}), behind, last_event=1000.0 + number, cut_at=2000.0 + number)
    return cut


def manifests(cut):
    return Manifests(cut.data["segments"]["path"])


@pytest.mark.parametrize(
    ("done", "under_way"), [(None, False), (None, True), (0, False), (0, True), (1, False), (2, True), (3, False)]
)
def test_records_behind_are_those_of_the_segments_that_follow_and_of_the_topic_after_them(cut, done, under_way):
    follows = 0 if done is None else done + 1
    names = cut.names
    lag = lag_behind(
        manifests(cut), names, None if done is None else names[done], names[follows] if under_way else None
    )
    follows += under_way
    assert (lag.segments, lag.cut_records) == (len(ROWS) - follows, sum(ROWS[follows:]))
    assert lag.uncut_records == BEHIND[-1]
    assert lag.newest_event == (None if done is None else 1000.0 + done)
    assert (
        lag.words
        == f"{lag.segments} segment{'' if lag.segments == 1 else 's'} and {sum(ROWS[follows:]) + 12} records behind"
    )


def test_without_a_segment_nothing_is_known(cut):
    assert lag_behind(manifests(cut), [], None) is None


def test_a_segment_that_is_trained_on_late_does_not_bring_back_those_after_it(cut):
    lag = lag_behind(manifests(cut), cut.names, cut.names[2], cut.names[0])
    assert (lag.segments, lag.cut_records, lag.newest_event) == (1, ROWS[3], 1002.0)


def test_each_manifest_is_read_once_and_few_are_kept(cut, monkeypatch):
    read, found = [], manifests(cut)
    from_json = Manifest.from_json.__func__
    monkeypatch.setattr(Manifest, "from_json", classmethod(lambda cls, text: read.append(1) or from_json(cls, text)))
    for place in range(1, len(ROWS)):
        for _ in range(3):
            lag_behind(found, cut.names, cut.names[place - 1], cut.names[place])
    assert len(read) == len(ROWS)
    assert len(found._read) <= 3


def test_a_partition_that_the_topic_got_since_counts_from_its_beginning(tmp_path):
    few, more = HandCut(tmp_path / "few", 1), HandCut(tmp_path / "more", 2)
    few.add(pa.table({"id": range(10)}))
    for size in (10, 40):
        more.add(pa.table({"id": range(size)}))
    first = tmp_path / "more/segments/000000000000.json"
    first.write_text((tmp_path / "few/segments/000000000000.json").read_text())
    # Partition 0 goes on after offset 10 with what the other topic has from 5 to 25; partition 1 has 0 to 25.
    lag = lag_behind(manifests(more), more.names, more.names[0])
    assert lag.cut_records == (25 - 10) + 25


def test_a_damaged_manifest_is_one_line(cut, tmp_path):
    file = tmp_path / "segments/000000000003.json"
    file.write_text(file.read_text()[:-40])
    with pytest.raises(InputError, match=rf"data.segments.path: '{file}' cannot be used: ") as raised:
        lag_behind(manifests(cut), cut.names, cut.names[0])
    assert "\n" not in str(raised.value)
