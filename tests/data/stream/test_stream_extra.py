"""Values of Avro without the package that reads them."""

import sys

import pyarrow as pa
import pytest

from trainer.config.stream import StreamConfig
from trainer.core.errors import InputError
from trainer.data.stream.decode import make_decoder


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    for name in ("avro_values", "avro_types"):
        monkeypatch.delitem(sys.modules, f"trainer.data.stream.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "fastavro", None)
    config = StreamConfig(brokers="localhost:1", topic="clicks", format="avro", schema_file="clicks.avsc")
    with pytest.raises(InputError, match=r"needs the package fastavro; pip install 'torchx-recsys\[kafka\]'"):
        make_decoder(config, pa.schema([("id", pa.int64())]))
