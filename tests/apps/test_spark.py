"""Data jobs on a real Spark, a master and two workers in processes of their own, against those of one process."""

import gzip
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_trainer, start_trainer
from ports import free_port

PYSPARK = importlib.util.find_spec("pyspark")
pytestmark = [
    pytest.mark.skipif(
        not (PYSPARK and shutil.which("java")),
        reason="needs pip install 'pyspark[connect]>=4' and apt-get install default-jre-headless",
    ),
    pytest.mark.more("starts a Spark, and is the contract of one process"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The environment of jobs, and the URL of a master with two workers."""
    folder = tmp_path_factory.mktemp("spark")
    (folder / "spark-defaults.conf").write_text(
        "spark.sql.shuffle.partitions 4\nspark.ui.enabled false\nspark.driver.bindAddress 127.0.0.1\n"
        "spark.driver.host 127.0.0.1\nspark.executor.memory 512m\n"
        "spark.cores.max 2\n"  # of the four, as jobs run beside the Spark Connect server
    )
    environment = {"SPARK_CONF_DIR": str(folder), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "512m"}
    environment["PYSPARK_PYTHON"] = sys.executable
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    master = ["Master", "-h", "127.0.0.1", "-p", str(port), "--webui-port", "0"]
    worker = ["Worker", "-h", "127.0.0.1", "-c", "2", "-m", "1g", "-d", str(folder), "--webui-port", "0", url]
    started = [_start(*words, folder=folder, environment=environment) for words in (master, worker, worker)]
    try:
        yield environment, url
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def server(cluster, tmp_path_factory):
    """The environment of jobs, and the URL of a Spark Connect server on that cluster."""
    environment, url = cluster
    port = free_port()
    words = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", url]
    words += ["--conf", f"spark.connect.grpc.binding.port={port}", "spark-internal"]
    process = _start("SparkSubmit", *words, folder=tmp_path_factory.mktemp("server"), environment=environment)
    yield environment, f"sc://127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.fixture(params=["cluster", "server"])
def spark(request):
    """A master, and a Spark Connect server."""
    return request.getfixturevalue(request.param)


READY = {
    "Master": "I have been elected leader",
    "Worker": "Successfully registered with master",
    "SparkSubmit": "Spark Connect server started",
}


def _start(kind, *words, folder, environment):
    package = f"{kind.lower()}." if kind in ("Master", "Worker") else ""
    command = [Path(PYSPARK.origin).parent / "bin" / "spark-class", f"org.apache.spark.deploy.{package}{kind}"]
    log = folder / f"{kind}-{time.monotonic_ns()}.log"
    process = subprocess.Popen([*command, *words], stderr=log.open("w"), env={**os.environ, **environment})
    while READY[kind] not in log.read_text():
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


def test_spark_writes_the_vocabularies_that_duckdb_writes(spark, rows, tmp_path):
    environment, url = spark
    arguments = ["--source", rows, "--min-count", "2", "--unseen-rows", "3", "--max-rows", "300"]
    for engine in ("duckdb", url):
        words = [*arguments, "--engine", engine, "--columns", "id", "word", "bag", "--out", tmp_path / engine[:2]]
        done = run_trainer("vocabulary", *words, **environment)
        assert done.returncode == 0, done.stderr
    for name in ("id", "word", "bag"):
        expected, found = (pq.read_table(tmp_path / engine / f"{name}.parquet") for engine in ("du", url[:2]))
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


def test_spark_finds_in_data_what_one_process_finds(spark, tmp_path):
    environment, url = spark
    random = np.random.default_rng(4)
    for split in ("train", "test"):
        (tmp_path / "rows" / split).mkdir(parents=True)
        for number in range(3):
            label = random.integers(0, 2, 3000)
            table = {
                "label": label,
                "item": random.integers(0, 5000, 3000),
                "leak": label + random.normal(size=3000) / 9,
                "city": [None if n % 9 == 0 else f"stadt {n % 700}" for n in random.integers(0, 10**4, 3000)],
                "bag": pa.array([[*range(n)] for n in random.integers(0, 4, 3000).tolist()], pa.list_(pa.int32())),
            }
            pq.write_table(pa.table(table), tmp_path / "rows" / split / f"{number}.parquet", row_group_size=700)
    found = {}
    for engine in ("threads", url):
        words = ["--source", tmp_path / "rows", "--all", "true", "--rows", "2000"]
        words += ["--json", tmp_path / f"{engine[:2]}.json"]
        done = run_trainer("check-data", *words, "--engine", engine, **environment)
        assert done.returncode == 0, done.stderr
        found[engine] = (done.stdout, (tmp_path / f"{engine[:2]}.json").read_text())
    assert found[url] == found["threads"]
    assert "leak" in found[url][0]
    assert json.loads(found[url][1])["columns"]["item"]["distinct_is"] == "estimated"


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """Three days of Criteo's text, one of them compressed, with a malformed line."""
    dice, folder = random.Random(0), tmp_path_factory.mktemp("days")
    for day in range(3):
        lines = [
            "\t".join(
                [
                    str(dice.randint(0, 1)),
                    *(str(dice.randint(-2, 999)) if dice.random() < 0.9 else "" for _ in range(13)),
                    *(f"{dice.getrandbits(32):08x}" for _ in range(26)),
                ]
            )
            for _ in range(1500)
        ]
        if day == 1:
            lines[77] += "\t"
        (folder / f"day_{day}").write_text("\n".join([*lines, ""]))
    (folder / "day_2.gz").write_bytes(gzip.compress((folder / "day_2").read_bytes()))
    (folder / "day_2").unlink()
    return ["--source", str(folder / "day_*"), "--layout", "terabyte", "--evaluation-source", "day_2"]


def contents(folder):
    """The bytes of all files of a data set."""
    return {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_spark_converts_as_one_process_does(spark, days, tmp_path):
    environment, url = spark
    days = [*days, "--source-bytes-per-file", "60000"]
    for engine in ("threads", url):
        words = [*days, "--max-malformed", "1", "--out", tmp_path / engine[:2], "--engine", engine]
        done = run_trainer("criteo", *words, **environment)
        assert done.returncode == 0, done.stderr
        assert "day_1:78: 41 tab-separated fields instead of 40" in done.stderr
    assert contents(tmp_path / url[:2]) == contents(tmp_path / "th")
    done = run_trainer("criteo", *days, "--out", tmp_path / "bad", "--engine", url, **environment)
    assert done.returncode == 2
    # Spark may still log that it ends its tasks.
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: 1 malformed line, and --max-malformed is 0: ")
    assert not (tmp_path / "bad" / "summary.json").exists()


def test_a_conversion_goes_on_where_a_killed_spark_has_stopped(cluster, days, tmp_path):
    environment, url = cluster
    words = [*days, "--max-malformed", "1", "--source-bytes-per-file", "2000"]
    errors = tmp_path / "errors"
    command = ["criteo", *words, "--out", tmp_path / "out", "--engine", url]
    job = start_trainer(command, tmp_path / "output", errors, 0, **environment)
    while not [*(tmp_path / "out").rglob("*.parquet")]:
        assert job.poll() is None, errors.read_text()
        time.sleep(0.05)
    (java,) = [one for one in psutil.Process(job.pid).children(recursive=True) if one.name() == "java"]
    java.kill()
    assert job.wait(600) == 1
    (line,) = [line for line in errors.read_text().splitlines() if line.startswith("error: ")]
    assert "and Spark has failed: " in line
    assert not (tmp_path / "out" / "summary.json").exists()
    for out in ("out", "undisturbed"):
        assert run_trainer("criteo", *words, "--out", tmp_path / out).returncode == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


def test_workers_without_this_package_are_one_line(cluster, days, tmp_path):
    environment, _ = cluster
    program = tmp_path / "python"  # finds pyspark alone
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    program.chmod(0o755)
    words = [*days, "--out", tmp_path / "out", "--engine", "local[1]"]
    done = run_trainer("criteo", *words, **environment | {"PYSPARK_PYTHON": str(program)})
    assert done.returncode == 1
    assert " on its workers; install torchx-recsys there, for the Python that PYSPARK_PYTHON" in done.stderr


def test_a_spark_that_is_gone_is_one_line(rows, tmp_path):
    done = run_trainer(
        "vocabulary", "--source", rows, "--columns", "id", "--engine", "local[", "--out", tmp_path / "out"
    )
    assert done.returncode == 1
    assert "error: --engine is 'local[', and Spark has failed: " in done.stderr
    assert not (tmp_path / "out").exists()
