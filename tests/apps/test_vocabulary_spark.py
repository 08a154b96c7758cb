"""Vocabularies that a real Spark counts, a master and two workers in processes of their own, against DuckDB's."""

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_trainer

PYSPARK = importlib.util.find_spec("pyspark")
pytestmark = pytest.mark.skipif(
    not (PYSPARK and shutil.which("java")),
    reason="Spark needs a package and Java: pip install 'pyspark>=4', apt-get install openjdk-17-jre-headless",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The environment of jobs, and the URL of a master with two workers."""
    folder = tmp_path_factory.mktemp("spark")
    (folder / "spark-defaults.conf").write_text(
        "spark.sql.shuffle.partitions 4\nspark.ui.enabled false\nspark.driver.bindAddress 127.0.0.1\n"
        "spark.driver.host 127.0.0.1\nspark.executor.memory 512m\n"
    )
    environment = {"SPARK_CONF_DIR": str(folder), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    master = ["Master", "-h", "127.0.0.1", "-p", str(port), "--webui-port", "0"]
    worker = ["Worker", "-h", "127.0.0.1", "-c", "1", "-m", "512m", "-d", str(folder), "--webui-port", "0", url]
    started = [_start(*words, folder=folder, environment=environment) for words in (master, worker, worker)]
    try:
        yield environment, url
    finally:
        for process in started:
            process.kill()
            process.wait()


def _start(kind, *words, folder, environment):
    command = [Path(PYSPARK.origin).parent / "bin" / "spark-class", f"org.apache.spark.deploy.{kind.lower()}.{kind}"]
    log = folder / f"{kind}-{time.monotonic_ns()}.log"
    process = subprocess.Popen([*command, *words], stderr=log.open("w"), env={**os.environ, **environment})
    waits_for = "I have been elected leader" if kind == "Master" else "Successfully registered with master"
    while waits_for not in log.read_text():
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    return process


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("rows"), np.random.default_rng(3)
    for number, dtype in enumerate((pa.int64(), pa.int32())):
        ids = random.zipf(1.4, 4000) % 10**6 - 5
        words = [None if n % 7 == 0 else f"ü{n % 900}".encode() for n in ids.tolist()]
        bags = [[int(n), None][: n % 3] if n % 5 else None for n in ids]
        table = {"id": pa.array(ids, dtype), "word": pa.array(words), "bag": pa.array(bags, pa.list_(dtype))}
        pq.write_table(pa.table(table), folder / f"{number}.parquet")
    return str(folder)


def test_spark_writes_the_vocabularies_that_duckdb_writes(cluster, rows, tmp_path):
    environment, url = cluster
    arguments = ["--source", rows, "--min-count", "2", "--unseen-rows", "3", "--max-rows", "300"]
    for engine in ("duckdb", url):
        words = [*arguments, "--engine", engine, "--columns", "id", "word", "bag", "--out", tmp_path / engine[:6]]
        done = run_trainer("vocabulary", *words, **environment)
        assert done.returncode == 0, done.stderr
    for name in ("id", "word", "bag"):
        expected, found = (pq.read_table(tmp_path / engine / f"{name}.parquet") for engine in ("duckdb", "spark:"))
        assert found.equals(expected)
        assert found.num_rows > 50


def test_several_columns_of_an_extended_vocabulary(cluster, rows, tmp_path):
    environment, _ = cluster
    arguments = ["--source", rows, "--columns", "id", "bag", "--together", "both", "--out"]
    assert run_trainer("vocabulary", *arguments, tmp_path / "old", "--max-rows", "9").returncode == 0
    for engine in ("duckdb", "local[2]"):
        words = [*arguments, tmp_path / engine, "--extends", tmp_path / "old", "--engine", engine]
        done = run_trainer("vocabulary", *words, **environment)
        assert done.returncode == 0, done.stderr
    expected, found = (pq.read_table(tmp_path / engine / "both.parquet") for engine in ("duckdb", "local[2]"))
    assert found.equals(expected)


def test_a_spark_that_is_gone_is_one_line(rows, tmp_path):
    done = run_trainer(
        "vocabulary", "--source", rows, "--columns", "id", "--engine", "local[", "--out", tmp_path / "out"
    )
    assert done.returncode == 1
    assert "error: --engine is 'local[', and Spark has failed; nothing was written: " in done.stderr
    assert not (tmp_path / "out").exists()
