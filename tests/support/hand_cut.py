"""Segments of a topic as the cutter leaves them, made by hand: manifests, and the copies that they name. No broker."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trainer.data.stream.manifest import LOG_FIELDS, OFFSET, PARTITION, TIME, Manifest, OffsetGroup, PartitionRange

GROUP = 64  # rows of a row group


class HandCut:
    """Cuts tables into segments of a topic.

    Args:
        folder: For `segments/NAME.json` and `archive/NAME/`.
        partitions: Number of partitions, each of which gets an equal part of the rows of a segment.

    Attributes:
        names: Names of the segments.
    """

    def __init__(self, folder: Path, partitions: int = 2) -> None:
        self.names: list[str] = []
        self._folder, self._ends = folder, [0] * partitions

    @property
    def data(self) -> dict:
        """The keys of the data section that read the segments."""
        return {
            "reader": "kafka",
            "segments": {"path": f"{self._folder}/segments/{{segment}}.json"},
            "stream": {"brokers": "localhost:1", "topic": "clicks", "archive": f"{self._folder}/archive"},
        }

    def add(self, rows: pa.Table, behind: int = 0, **facts: object) -> str:
        """Adds a segment; `behind` records wait after it in the first partition.

        Args:
            rows: Its rows.
            behind: Records that the topic has after it.
            facts: Further attributes of its manifest.
        """
        name = f"{len(self.names):012}"
        copies, segments = self._folder / "archive" / name, self._folder / "segments"
        copies.mkdir(parents=True)
        segments.mkdir(exist_ok=True)
        groups, ranges, each = [], {}, -(-rows.num_rows // len(self._ends))
        for partition, start in enumerate(self._ends):
            part = rows.slice(partition * each, each)
            end = start + part.num_rows
            own = [[partition] * part.num_rows, range(start, end), [0] * part.num_rows]
            columns = [pa.array(values, field.type) for values, field in zip(own, LOG_FIELDS, strict=True)]
            part = pa.table([*part.columns, *columns], pa.schema([*part.schema, *LOG_FIELDS]))
            file = f"{partition}-{start}-{end}.parquet"
            pq.write_table(part, copies / file, row_group_size=GROUP)
            for number, first in enumerate(range(0, part.num_rows, GROUP)):
                size = min(GROUP, part.num_rows - first)
                counts = {"rows": size, "records": size, "bytes": 10 * size, "crc32": 1}
                offsets = {"start": start + first, "end": start + first + size}
                groups.append(OffsetGroup(partition=partition, **offsets, **counts, copy=file, copy_group=number))
            ranges[partition] = PartitionRange(start=start, end=end, high=end + (behind if partition == 0 else 0))
            self._ends[partition] = end
        manifest = Manifest(
            topic="clicks",
            cluster="",
            format="json",
            schema=pa.schema([*rows.schema, *LOG_FIELDS]),
            partitions=ranges,
            groups=(*groups,),
            archive=str(copies),
            **facts,
        )
        assert {PARTITION, OFFSET, TIME} <= {*manifest.schema.names}
        (segments / f"{name}.json").write_text(manifest.to_json())
        self.names.append(name)
        return name
