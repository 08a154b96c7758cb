"""The connection to a topic: what is wrong with brokers, topic or options is one line, within the bound."""

import socket
import ssl
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest
from kafka_broker import broker, missing
from ports import free_port

from trainer.config.stream import StreamConfig
from trainer.core.errors import InputError, StorageError
from trainer.data.stream.log import TopicLog, read_options

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
BOUND = 2.0
SECRET = "hunter22hunter22"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    with broker(tmp_path_factory.mktemp("broker")) as found:
        found.create("clicks", 3)
        found.create("orders", 1)
        found.produce("clicks", [{"partition": n % 3, "value": b"%d" % n} for n in range(90)])
        yield found


def section(address, **changes):
    return StreamConfig.model_validate({"brokers": address, "topic": "clicks", "timeout_seconds": BOUND} | changes)


def refusal(config, kind):
    began = time.monotonic()
    with pytest.raises(kind) as error:
        TopicLog(config).topic()
    assert "\n" not in str(error.value)
    assert SECRET not in str(error.value)
    return str(error.value), time.monotonic() - began


def options(folder, text):
    file = folder / "kafka.properties"
    file.write_text(text)
    return str(file)


def read_all(log, partition, start):
    """Returns the offsets of a partition from one on, and its end."""
    log.assign({partition: start})
    found = []
    while True:
        batch = log.read(7, 0.2)
        found += [(one.offset(), one.value()) for one in batch.messages]
        if partition in batch.ends:
            return found, batch.ends[partition]


def test_a_topic_has_partitions_and_records(kafka):
    log = TopicLog(section(kafka.address))
    found = log.topic()
    assert found.partitions == (0, 1, 2)
    assert found.cluster
    assert log.earliest([0, 2]) == {0: 0, 2: 0}
    assert read_all(log, 1, 10) == ([(n, b"%d" % (3 * n + 1)) for n in range(10, 30)], 30)
    assert read_all(log, 2, 0)[1] == 30
    log.close()


def test_the_end_of_a_topic_is_waited_at_for_as_long_as_brokers_answer(kafka):
    log = TopicLog(section(kafka.address, timeout_seconds=1))
    read_all(log, 0, 0)
    ends = time.monotonic() + 2.5
    while time.monotonic() < ends:
        assert not log.read(7, 0.2).messages
    log.close()


def test_a_connection_that_has_rested_waits_for_as_long_as_a_new_one(tmp_path):
    with broker(tmp_path) as kafka:
        kafka.create("clicks", 1)
        log = TopicLog(section(kafka.address))
        read_all(log, 0, 0)
        time.sleep(BOUND + 0.5)
        kafka.stop()
        threading.Timer(BOUND * 0.75, kafka.go_on).start()
        log.go_on()
        ends = time.monotonic() + BOUND
        while time.monotonic() < ends:
            log.read(7, 0.2)
        log.close()


def test_no_such_topic_names_the_nearest(kafka):
    line, _ = refusal(section(kafka.address, topic="click"), InputError)
    assert line.endswith("is 'click', which brokers " + kafka.address + " do not have; did you mean 'clicks'?")
    line, _ = refusal(section(kafka.address, topic="xyz"), InputError)
    assert "known: clicks, orders" in line


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "no-such-host.invalid:9092"])
def test_brokers_that_are_not_there_are_one_line_after_the_bound(address):
    line, seconds = refusal(section(address.format(port=free_port())), StorageError)
    assert "no broker has answered for data.stream.timeout_seconds (2): " in line
    assert ("refused" in line) or ("resolve" in line)
    assert seconds > BOUND


def test_brokers_that_answer_nothing_are_one_line_after_the_bound():
    with socket.create_server(("127.0.0.1", 0)) as server:
        line, _ = refusal(section(f"127.0.0.1:{server.getsockname()[1]}"), StorageError)
    assert "no broker has answered for data.stream.timeout_seconds (2)" in line


def test_passwords_that_brokers_refuse_are_one_line_at_once(kafka, tmp_path):
    text = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=me\nsasl.password={SECRET}\n"
    config = section(kafka.address, options=options(tmp_path, text), timeout_seconds=600)
    line, seconds = refusal(config, InputError)
    assert "which refuse the connection (" in line
    assert "data.stream.options" in line
    assert seconds < 60


@contextmanager
def tls_server(folder):
    """Yields the address of a server whose certificate nobody has signed."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    words = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {certificate}"
    subprocess.run(words.split(), check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                    context.wrap_socket(connection, server_side=True).close()
                except ssl.SSLError:
                    continue
                except OSError:  # the test has ended
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def test_a_certificate_that_is_not_trusted_is_one_line_at_once(tmp_path):
    with tls_server(tmp_path) as address:
        config = section(address, options=options(tmp_path, "security.protocol=SSL\n"), timeout_seconds=600)
        line, seconds = refusal(config, InputError)
    assert "certificate" in line
    assert seconds < 60


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sasl.pasword=" + SECRET, "it has 'sasl.pasword', which librdkafka does not know"),
        ("security.protocol=" + SECRET, "its value of 'security.protocol' is none that librdkafka takes"),
        ("# comment\n\n" + SECRET, "line 3 is not key=value"),
        ("bootstrap.servers=a:1", "line 1 has 'bootstrap.servers', which data.stream.brokers sets"),
        ("enable.auto.commit=true", "line 1 has 'enable.auto.commit', which the program sets"),
        ("security.protocol=ssl\nssl.ca.location=/nowhere/ca.pem", "ssl.ca.location failed"),
        ("security.protocol=sasl_ssl\nsasl.mechanism=PLAIN\nsasl.password=" + SECRET, "sasl.username"),
        ("security.protocol=sasl_plaintext\nsasl.mechanism=" + SECRET, "***"),
        ("\xff", "is no text in UTF-8"),
    ],
)
def test_options_that_cannot_be_used_are_one_line_without_their_values(tmp_path, text, reason):
    file = options(tmp_path, "")
    (tmp_path / "kafka.properties").write_bytes(text.encode("latin-1"))
    line, _ = refusal(section("nowhere:1", options=file), InputError)
    assert "data.stream.options" in line
    assert reason in line


def test_options_are_read_from_a_file(tmp_path):
    text = " # who\nsasl.username = me\nsasl.password=a=b # c\n\nclient.id=\n"
    assert read_options(options(tmp_path, text)) == {
        "sasl.username": "me",
        "sasl.password": "a=b # c",
        "client.id": "",
    }
    line, _ = refusal(section("nowhere:1", options=str(tmp_path / "none")), InputError)
    assert "data.stream.options is" in line


def test_librdkafka_prints_nothing(kafka, capfd, tmp_path):
    refusal(
        section(
            f"127.0.0.1:{free_port()}", timeout_seconds=0.5, options=options(tmp_path, "client.id=x\nlinger.ms=5\n")
        ),
        StorageError,
    )
    log = TopicLog(section(kafka.address, options=options(tmp_path, "socket.keepalive.enable=true\nlinger.ms=5\n")))
    read_all(log, 0, 0)
    log.close()
    output, errors = capfd.readouterr()
    assert errors == ""
    assert "rdkafka" not in output
