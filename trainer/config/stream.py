"""Records of a topic of Kafka, which come in segments of offsets."""

from typing import Annotated, Literal, Self

import pydantic

from trainer.core.errors import InputError
from trainer.core.section import MayChange, Section


class StreamConfig(Section):
    """A topic of Kafka, which `data.cut_stream` cuts into segments, and data.reader 'kafka' reads."""

    brokers: Annotated[str | None, MayChange] = None
    """Addresses of brokers, separated by commas: kafka1:9092,kafka2:9092."""
    topic: str | None = None
    """The topic."""
    options: Annotated[str | None, MayChange] = None
    """File of librdkafka's properties, a line for each, such as sasl.password=...: for secrets, and for how to reach
    the brokers. It is read where the job runs, and no run has a copy."""
    format: Literal["json", "avro", "arrow"] = "json"
    """What the value of a record is: an object of JSON, Avro (with or without the five bytes of a schema registry), or
    a stream of Arrow IPC with any number of rows."""
    columns: dict[str, str] = {}
    """Arrow types of JSON's columns by name: user_id = "int64", genres = "list<string>". Columns that are not here get
    their types from the records of the first segment."""
    schema_file: str | None = None
    """Avro schema (.avsc), on any fsspec URL, that records are read as. Without registry they were written with it."""
    registry: Annotated[str | None, MayChange] = None
    """URL of a schema registry, which has the schemas that Avro's records were written with."""
    event_time: str | None = None
    """Column with the time of the event: seconds since 1970, or a timestamp. Unset: the time that Kafka has."""
    start: str = "earliest"
    """Where the first segment begins: earliest, latest, or a time such as 2026-11-28T06:00:00Z."""
    every_records: Annotated[pydantic.PositiveInt | None, MayChange] = None
    """A segment ends after this many records, over all partitions."""
    every_seconds: Annotated[pydantic.PositiveFloat | None, MayChange] = None
    """A segment ends this long after its first record was read; with every_records, at whichever comes first."""
    marker: Annotated[str | None, MayChange] = None
    """Instead: key of the record that ends a segment in its partition; each partition needs one for each segment."""
    poison: Annotated[Literal["stop", "skip"], MayChange] = "stop"
    """For a record that cannot be read: stop names it and ends the job; skip leaves it out and counts it."""
    archive: Annotated[str | None, MayChange] = None
    """Directory, on any fsspec URL, that gets a copy of each segment in Parquet, which is then read in place of the
    topic. Unset: none, and a segment can be read for as long as the topic keeps its records."""
    timeout_seconds: Annotated[pydantic.PositiveFloat, MayChange] = 60.0
    """A job ends after it has waited this long for brokers that do not answer."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        given = self.model_dump(exclude_defaults=True)
        if given and (missing := [key for key in ("brokers", "topic") if not getattr(self, key)]):
            raise InputError(f"data.stream.{min(given)} is set, but data.stream.{missing[0]} is not; set both or none")
        if self.columns and self.format != "json":
            raise InputError(
                f"data.stream.columns is set, but data.stream.format is '{self.format}', whose records have types; "
                "leave it out"
            )
        for key in ("schema_file", "registry"):
            if getattr(self, key) and self.format != "avro":
                raise InputError(
                    f"data.stream.{key} is set, but data.stream.format is '{self.format}', which does not use it; "
                    "leave it out, or set the format to 'avro'"
                )
        if given and self.format == "avro" and not (self.schema_file or self.registry):
            raise InputError(
                "data.stream.format is 'avro', but neither data.stream.schema_file nor data.stream.registry is set; "
                "set one"
            )
        if self.marker is not None and (self.every_records or self.every_seconds):
            key = "every_records" if self.every_records else "every_seconds"
            raise InputError(f"data.stream.marker and data.stream.{key} are set; leave one out")
        return self
