"""The manifest of a segment of a topic: which offsets it has, and what was read there when it was cut.

A manifest is written once, before anything is trained on the segment, and never changed. Whoever reads the segment
compares the records with it, so that a job never trains on other records than the first that read the segment.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow as pa
from isal.isal_zlib import crc32

SUFFIX = ".json"
VERSION = 1
GROUP_RECORDS = 8192  # largest number of records in a row group
GROUP_BYTES = 32 << 20  # size of the values from which a row group is full

# Columns beside those of the values, of where and when the log has a record.
PARTITION, OFFSET, TIME = "_partition", "_offset", "_time"
LOG_FIELDS = (
    pa.field(PARTITION, pa.int32(), nullable=False),
    pa.field(OFFSET, pa.int64(), nullable=False),
    pa.field(TIME, pa.timestamp("ms", "UTC"), nullable=False),
)


def log_columns(
    partition: int, offsets: Sequence[int], milliseconds: Sequence[int], rows: np.ndarray
) -> dict[str, pa.Array]:
    """Returns the columns of `LOG_FIELDS` for the rows of records.

    Args:
        partition: The partition of the records.
        offsets: Their offsets, `[N]`.
        milliseconds: Their times since 1970, `[N]`.
        rows: The number of rows of each, `[N]`.
    """
    columns = {
        PARTITION: np.full(int(rows.sum()), partition, np.int32),
        OFFSET: np.repeat(np.asarray(offsets, np.int64), rows),
        TIME: np.repeat(np.asarray(milliseconds, np.int64), rows),
    }
    return {field.name: pa.array(columns[field.name]).cast(field.type) for field in LOG_FIELDS}


def crc32_of(values: Iterable[bytes]) -> int:
    """Returns the CRC-32 of values, one after the other."""
    found = 0
    for value in values:
        found = crc32(value, found)
    return found


@dataclass(frozen=True, kw_only=True)
class OffsetGroup:
    """A row group: consecutive offsets of a partition.

    Attributes:
        partition: The partition.
        start: Its first offset.
        end: The offset after its last; there may be none at some of the offsets between.
        rows: Rows in its records: of JSON and Avro one for each record that is neither a tombstone nor left out.
        records: Records that have a value and are not left out.
        bytes: Size of their values.
        crc32: CRC-32 of the values of these records, one after the other.
        left_out: Offsets of the records that could not be read.
        copy: Name of the Parquet file below the archive's directory of the segment that has its rows; empty without.
        copy_group: The row group in that file.
    """

    partition: int
    start: int
    end: int
    rows: int
    records: int
    bytes: int
    crc32: int
    left_out: tuple[int, ...] = ()
    copy: str = ""
    copy_group: int = 0


@dataclass(frozen=True, kw_only=True)
class PartitionRange:
    """The part of a segment in a partition.

    Attributes:
        start: Its first offset.
        end: The offset after its last, with which the next segment begins.
        high: The offset after the last record that the partition had when the segment was cut.
    """

    start: int
    end: int
    high: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A segment of a topic.

    Attributes:
        topic: The topic.
        cluster: Id of the cluster, if brokers name one.
        format: As in data.stream.
        schema: Types of the columns of its rows, `LOG_FIELDS` among them.
        partitions: Its offsets, by partition.
        groups: Its row groups, in the order of partitions and offsets.
        tombstones: Records without a value.
        left_out: Records that could not be read.
        late: Records with an earlier event time than the newest of the segments before.
        first_event: Earliest event time of its records, in seconds since 1970; None without records.
        last_event: The latest of this and all earlier segments.
        cut_at: Time at which it was cut, in seconds since 1970.
        archive: URL of the directory with copies of its row groups; empty without.
    """

    topic: str
    cluster: str
    format: str
    schema: pa.Schema
    partitions: dict[int, PartitionRange]
    groups: tuple[OffsetGroup, ...]
    tombstones: int = 0
    left_out: int = 0
    late: int = 0
    first_event: float | None = None
    last_event: float | None = None
    cut_at: float = 0.0
    archive: str = ""
    version: int = field(default=VERSION)

    @property
    def rows(self) -> int:
        """Number of its rows."""
        return sum(group.rows for group in self.groups)

    @property
    def behind(self) -> int:
        """Records that the topic had after it when it was cut."""
        return sum(part.high - part.end for part in self.partitions.values())

    def to_json(self) -> str:
        """Returns it as text."""
        tree = asdict(self) | {"schema": b64encode(self.schema.serialize().to_pybytes()).decode()}
        groups: Sequence[dict] = tree.pop("groups")
        lines = ",\n  ".join(json.dumps({key: value for key, value in one.items() if value}) for one in groups)
        return f'{json.dumps(tree)[:-1]}, "groups": [\n  {lines}\n]}}\n'

    @classmethod
    def from_json(cls, text: str | bytes) -> "Manifest":
        """Reads what `to_json` wrote.

        Raises:
            ValueError: It is something else, damaged, or of a later version.
        """
        try:
            tree = json.loads(text)
            if tree["version"] != VERSION:
                raise ValueError(f"it has version {tree['version']}, and this program reads version {VERSION}")
            empty = {"start": 0, "partition": 0, "rows": 0, "records": 0, "bytes": 0, "crc32": 0}
            groups = [empty | one | {"left_out": (*one.get("left_out", ()),)} for one in tree["groups"]]
            return cls(
                **tree
                | {
                    "schema": pa.ipc.read_schema(pa.py_buffer(b64decode(tree["schema"]))),
                    "partitions": {int(key): PartitionRange(**part) for key, part in tree["partitions"].items()},
                    "groups": tuple(OffsetGroup(**one) for one in groups),
                }
            )
        except (KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            raise ValueError(f"it is no manifest of a segment, or damaged: {error!r}") from error
