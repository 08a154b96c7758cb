"""Cuts a topic into segments: which record ends one, and what is written and reported then."""

import time
from collections.abc import Callable

from torchx_recsys.apps.cut_stream.archive import Archive
from torchx_recsys.apps.cut_stream.manifests import KEY, ManifestDirectory, first_name, name_after
from torchx_recsys.apps.cut_stream.open_segment import OpenSegment, Values
from torchx_recsys.apps.cut_stream.time_order import TimeOrder
from torchx_recsys.apps.cut_stream.topic import CutTopic, Record
from trainer.config.data import DataConfig
from trainer.core.console import plural
from trainer.core.errors import InputError, some_of
from trainer.core.progress import PROGRESS, TrainingProgress, backlog_line
from trainer.core.secrets import place
from trainer.data.stream.manifest import Manifest

LOOK_SECONDS = 60.0  # time between two looks for new partitions
TELL_SECONDS = 60.0  # time between two lines on partitions that lack a marker


class Cutter:
    """Cuts segments, the only one in its directory.

    Args:
        data: The data section.
        directory: The directory of manifests.
        check: Called between polls of the topic; it may raise.

    Attributes:
        done: Number of segments that were cut.

    Raises:
        InputError: The directory, the archive or the topic cannot be used.
        StorageError: The brokers do not answer.
    """

    def __init__(self, data: DataConfig, directory: ManifestDirectory, check: Callable[[], None]) -> None:
        self._config, self._directory = data.stream, directory
        self._marker = None if self._config.marker is None else self._config.marker.encode()
        self._pending = TimeOrder()
        self.done = 0
        newest = directory.newest()
        directory.remove_partial()
        self._name = name_after(newest[0]) if newest else first_name()
        self._archive = Archive(self._config.archive, directory.url) if self._config.archive else None
        if self._archive:
            self._archive.remove_remains(self._name)
        self._topic = CutTopic(self._config, check)
        try:
            self._begin(newest[1] if newest else None)
        except BaseException:
            self._topic.close()
            raise

    def run(self, follow: bool, most: int | None, rest: bool) -> None:
        """Cuts segments.

        Args:
            follow: Whether to wait for more records once the topic has no more.
            most: Most segments; None for no limit.
            rest: Whether to cut a last segment that is not full.

        Raises:
            InputError: A record cannot be read, or its offset is gone.
            StorageError: The brokers, or storage, do not answer.
        """
        PROGRESS.begin(TrainingProgress(step=0, last_step=0, time=time.time()), print)
        while most is None or self.done < most:
            is_full = self._fill(follow)
            if not is_full and not (rest and self._segment.records and self._segment.can_be_cut):
                return
            self._cut()
            if not is_full:
                return

    def left(self) -> str:
        """Returns how many records are in no segment, in words."""
        ends = self._segment.ends
        highs = {number: max(high, ends[number]) for number, high in self._topic.highs().items()}
        records = sum((ends | highs)[number] - start for number, start in self._starts.items())
        return f"{plural(records, 'record')} of the topic {'is' if records == 1 else 'are'} in no segment yet"

    def close(self) -> None:
        """Ends the connections, and forgets what is in no segment."""
        self._segment.drop()
        self._topic.close()

    def _begin(self, newest: Manifest | None) -> None:
        """Finds the offsets to begin with, prints them, and begins to read."""
        topic, config = self._topic, self._config
        starts = self._starts_after(newest) if newest else topic.starts()
        self._values = Values(config, newest.schema if newest else None, len(topic.partitions))
        where = some_of(f"{number} at offset {offset:,}" for number, offset in sorted(starts.items()))
        print(
            f"topic '{config.topic}' of {config.brokers}: {plural(len(starts), 'partition')}; segment {self._name} "
            f"begins with partition {where}",
            flush=True,
        )
        self._newest_event = newest.last_event if newest else None
        self._looked = time.monotonic()
        self._open(starts)
        topic.begin(starts)

    def _starts_after(self, newest: Manifest) -> dict[int, int]:
        """Returns the offsets with which the segment after the newest begins.

        Raises:
            InputError: The topic no longer has them, or is another one of that name.
        """
        topic, lows = self._topic, self._topic.earliest(self._topic.partitions)
        other = ""
        if newest.cluster and topic.cluster and newest.cluster != topic.cluster:
            other = f"is of cluster '{newest.cluster}', and data.stream.brokers of '{topic.cluster}'"
        elif gone := sorted(newest.partitions.keys() - lows.keys()):
            other = f"has partition {gone[0]}, and the topic does not"
        if other:
            raise InputError(
                f"{KEY} is in {place(self._directory.run.url)}, where the newest segment {other}: its offsets are "
                "those of another topic; name another directory"
            )
        ends = {number: part.end for number, part in newest.partitions.items()}
        self._topic.refuse_gone(ends, lows)
        self._report_new(sorted(lows.keys() - ends.keys()))
        return lows | ends

    def _open(self, starts: dict[int, int]) -> None:
        """Begins a segment."""
        self._starts = starts
        self._segment = OpenSegment(self._name, self._values, starts, self._newest_event, self._archive)
        self._marked: set[int] = set()  # partitions whose marker was read
        self._held: list[Record] = []  # records after it
        self._first_read: float | None = None
        self._opened = time.monotonic()
        self._tell_at = 0.0  # when partitions that lack a marker are reported next

    def _fill(self, follow: bool) -> bool:
        """Reads until the segment is to be cut; returns False if the topic ended before."""
        while True:
            while self._pending.is_ready:
                self._take(self._pending.take())
                if self._is_full():
                    return True
            if self._is_full():
                return True
            if not follow and self._topic.has_caught_up():
                if not self._pending.partitions:
                    return False
                self._pending.wait_no_more()  # or a job would never end while records come
                continue
            self._topic.read_on_without(self._pending.ahead())
            self._pending.add(self._topic.poll(), self._topic.lagging())
            PROGRESS.doing("" if self._pending.partitions else "the wait for records")
            self._report_lacking()

    def _take(self, record: Record) -> None:
        if record.partition in self._marked:
            self._held.append(record)
        elif self._marker is not None and record.key == self._marker:
            self._segment.pass_by(record.partition, record.offset + 1)
            self._marked.add(record.partition)
            self._topic.pause(record.partition)
        else:
            self._segment.add(record.partition, record.offset, record.time, record.value)
            if self._first_read is None:
                self._first_read = time.monotonic()

    def _is_full(self) -> bool:
        """Returns whether the segment is to be cut now."""
        config, segment = self._config, self._segment
        if self._marker is not None:
            if len(self._marked) < len(self._starts):
                return False
            if segment.can_be_cut:
                return True
            self._go_on_without_values()
            return False
        if self._first_read is None:
            return False
        is_full = bool(config.every_records) and segment.records >= (config.every_records or 0)
        if not is_full and config.every_seconds:
            is_full = time.monotonic() - self._first_read >= config.every_seconds
        return is_full and segment.can_be_cut

    def _go_on_without_values(self) -> None:
        """Lets the first segment go on beyond its markers, as long as nothing decides the columns of its rows."""
        print(
            f"segment {self._name} goes on after its markers, as there is no value yet to decide columns by", flush=True
        )
        self._unmark()

    def _unmark(self) -> None:
        self._pending.put_back(self._held)
        self._marked, self._held = set(), []
        self._topic.resume()

    def _cut(self) -> None:
        """Writes the manifest, reports the segment, and begins the next."""
        segment, now = self._segment, time.time()
        waiting = self._pending.partitions | {record.partition for record in self._held}
        for number, position in self._topic.positions.items():
            if number not in waiting:
                segment.pass_by(number, position)
        manifest = segment.finish(self._topic.highs(), self._topic.cluster, now)
        self._directory.write(self._name, manifest)
        self.done += 1
        self._report(manifest)
        self._newest_event = manifest.last_event
        self._name = name_after(self._name)
        self._topic.go_on()  # as copies may have taken minutes
        self._unmark()
        self._open(segment.ends | self._new_partitions())

    def _report(self, manifest: Manifest) -> None:
        segment = self._segment
        words = [plural(segment.records, "record"), plural(manifest.rows, "row")]
        if segment.tombstones:
            words.append(plural(segment.tombstones, "tombstone"))
        if segment.left_out:
            words.append(f"{segment.left_out:,} left out")
        if segment.late:
            words.append(f"{segment.late:,} late")
        words.append(f"{segment.records / max(time.monotonic() - self._opened, 1e-3):,.0f} records/s")
        behind = f"{plural(manifest.behind, 'record')} behind"
        print(backlog_line(self._name, ", ".join(words), behind, segment.newest_time), flush=True)
        PROGRESS.behind(f"segment {self._name}, {behind}", segment.newest_time)

    def _report_lacking(self) -> None:
        """Reports which partitions lack the marker that others have: after timeout_seconds, and then each minute."""
        now = time.monotonic()
        if not self._marked:
            self._tell_at = now + self._config.timeout_seconds
        elif now > self._tell_at:
            lacking = sorted(self._starts.keys() - self._marked)
            where = f"{plural(len(lacking), 'partition')}: {some_of(lacking)}"
            print(f"segment {self._name} waits for the marker '{self._config.marker}' in {where}", flush=True)
            self._tell_at = now + TELL_SECONDS

    def _new_partitions(self) -> dict[int, int]:
        """Returns where partitions begin that the topic has got since the last look, and begins to read them."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return {}
        self._looked = time.monotonic()
        found = self._topic.earliest(self._topic.new_partitions())
        for number, offset in found.items():
            self._topic.add(number, offset)
        self._report_new([*found])
        return found

    def _report_new(self, partitions: list[int]) -> None:
        for number in partitions:
            print(
                f"the topic has a new partition, {number}: segment {self._name} begins it with its first offset",
                flush=True,
            )
