"""A server that speaks S3, in a process of its own, which fails on request.

`python tests/object_store.py` prints its URL. Faults are injected by a PUT to /faults: a list of

    {"fault": "503", "method": "PUT", "path": "state.json", "times": 2, "seconds": 0}

* fault: an HTTP status; `drop` hangs up without doing anything, `mute` after it did what was asked; `slow` waits.
* method and path: regular expressions, each searched in the request. times: for so many requests; -1 for good.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import fsspec
import requests
from ports import free_port

KEYS = {"AWS_ACCESS_KEY_ID": "an-access-key", "AWS_SECRET_ACCESS_KEY": "the-secret-key"}
# The one key that Azurite knows; it stands in its documentation.
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
OSS = "s3.oss-cn-hangzhou.test"  # what buckets are subdomains of
CODES = {"403": "AccessDenied", "500": "InternalError", "503": "SlowDown"}
BODY = '<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code} was asked for</Message></Error>'


class ObjectStore:
    """The server, for a test.

    Attributes:
        environment: What a process needs to use it.
        fs: The same, in this process.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.environment = {"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1", **KEYS}
        names = dict(zip(("key", "secret"), KEYS.values(), strict=True))
        self.fs: Any = fsspec.filesystem("s3", endpoint_url=url, use_listings_cache=False, **names)

    @contextmanager
    def faults(self, *faults: dict) -> Iterator[Callable[[], int]]:
        """Injects faults while the block runs; yields a function that counts them."""
        requests.put(f"{self._url}/faults", json=[{"method": "", "path": "", "times": -1, **one} for one in faults])
        try:
            yield lambda: requests.get(f"{self._url}/faults").json()
        finally:
            requests.put(f"{self._url}/faults", json=[])


@contextmanager
def google_store() -> Iterator[dict[str, str]]:
    """Starts a server of Google's protocol with a bucket called `bucket`; yields what a process needs to use it."""
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--in-memory", "--default-bucket", "bucket"]
    with _started(command, "--host", "--port") as url:
        yield {
            "STORAGE_EMULATOR_HOST": url,
            "FSSPEC_GS_TOKEN": "anon",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # would ask the real one what kind of bucket it is
        }


@contextmanager
def alibaba_store() -> Iterator[dict[str, str]]:
    """Does the same with a server that demands of S3's requests what Alibaba's OSS does."""
    command = [sys.executable, __file__, "oss"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            url = process.stdout.readline().strip()
            requests.put(url, headers={"Host": f"bucket.{OSS}"}).raise_for_status()
            yield {
                "AWS_ENDPOINT_URL": f"http://{OSS}",
                "AWS_DEFAULT_REGION": "cn-hangzhou",
                "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
                "FSSPEC_S3": '{"config_kwargs": {"s3": {"addressing_style": "virtual"}}}',
                "HTTP_PROXY": url,  # as no name server here knows the hosts of buckets
                **KEYS,
            }
        finally:
            process.kill()


@contextmanager
def azure_store() -> Iterator[dict[str, str]]:
    """Does the same with Azure's."""
    command = ["azurite-blob", "--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]
    with _started(command, "--blobHost", "--blobPort") as url:
        account = f"AccountName=devstoreaccount1;AccountKey={AZURITE_KEY};BlobEndpoint={url}/devstoreaccount1;"
        fsspec.filesystem("abfs", connection_string=account).mkdir("bucket")
        yield {"FSSPEC_ABFS_CONNECTION_STRING": account}


@contextmanager
def _started(command: list[str], host_flag: str, port_flag: str) -> Iterator[str]:
    """Starts a server on a free port and yields its URL."""
    port = free_port()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [*command, host_flag, "127.0.0.1", port_flag, str(port)]
    with subprocess.Popen(command, start_new_session=True, **quiet) as process:
        try:
            while process.poll() is None:
                with suppress(requests.ConnectionError):
                    requests.get(f"http://127.0.0.1:{port}/")
                    break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # `node` of a wheel starts another process


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Starts the server."""
    from s3fs import S3FileSystem  # not in the server, which is this file as well

    with subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            S3FileSystem.clear_instance_cache()  # it keeps file systems of other servers in this process
            yield ObjectStore(process.stdout.readline().strip())
        finally:
            process.kill()


class Faulty:
    """A WSGI application that passes requests on to another, or fails as injected."""

    def __init__(self, application: Callable[..., Any]) -> None:
        self._application, self._lock = application, threading.Lock()
        self._faults: list[dict] = []
        self._count = 0

    def __call__(self, environ: dict, start_response: Callable[..., Any]) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == "/faults":
            return self._set_faults(environ, start_response)
        fault = self._next(method, path)
        if fault is None:
            return self._application(environ, start_response)
        if fault["fault"] == "slow":
            time.sleep(fault["seconds"])
            return self._application(environ, start_response)
        if fault["fault"] in CODES:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response(f"{fault['fault']} asked for", [("Content-Type", "application/xml")])
            return [BODY.format(code=CODES[fault["fault"]]).encode()]
        if fault["fault"] == "mute":
            list(self._application(environ, lambda *_: None))
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionAbortedError

    def _next(self, method: str, path: str) -> dict | None:
        with self._lock:
            for fault in self._faults:
                if fault["times"] and re.search(fault["method"], method) and re.search(fault["path"], path):
                    fault["times"] -= 1
                    self._count += 1
                    return fault
        return None

    def _set_faults(self, environ: dict, start_response: Callable[..., Any]) -> Any:
        with self._lock:
            if environ["REQUEST_METHOD"] == "PUT":
                self._faults = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
                self._count = 0
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._count).encode()]


class Oss:
    """A WSGI application that passes on to one of S3 what OSS would take, as far as its documentation and users report.

    Buckets are in the host's name, bodies are not in chunks of `aws-chunked`, a deletion of several objects has the MD5
    of its list, and `If-None-Match` is ignored.
    """

    def __init__(self, application: Callable[..., Any]) -> None:
        self._application = application

    def __call__(self, environ: dict, start_response: Callable[..., Any]) -> Any:
        bucket, _, host = environ["HTTP_HOST"].partition(".")
        deletes_several = environ["REQUEST_METHOD"] == "POST" and environ["QUERY_STRING"].startswith("delete")
        refusals = {
            "SecondLevelDomainForbidden": host != OSS,
            "InvalidArgument": "aws-chunked" in environ.get("HTTP_CONTENT_ENCODING", ""),
            "MissingArgument": deletes_several and "HTTP_CONTENT_MD5" not in environ,
        }
        if code := next((code for code, applies in refusals.items() if applies), None):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("400 Bad Request", [("Content-Type", "application/xml")])
            return [BODY.format(code=code).encode()]
        environ.pop("HTTP_IF_NONE_MATCH", None)
        environ |= {"HTTP_HOST": "127.0.0.1", "PATH_INFO": f"/{bucket}{environ['PATH_INFO']}"}
        environ["RAW_URI"] = environ["REQUEST_URI"] = environ["PATH_INFO"]
        return self._application(environ, start_response)


def serve(protocol: Callable[[Callable[..., Any]], Any]) -> None:
    """Serves on a free port until it is killed."""
    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    class Quiet(MotoRequestHandler):
        def log(self, *_: object) -> None:
            pass

    server = make_server("127.0.0.1", 0, protocol(create_backend_app("s3")), True, request_handler=Quiet)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(Oss if "oss" in sys.argv else Faulty)
