"""A repository of a container registry, by the HTTP API of OCI's distribution specification.

Credentials are Docker's: its configuration file and its credential helpers, as Docker's own client reads them, which
TorchX requires. `oras` of PyPI was weighed: it mounts no blobs across repositories, and retries silently for minutes.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urljoin

from schedulers.errors import SchedulerError

if TYPE_CHECKING:
    from requests import Response

DOCKER_HUB = "registry-1.docker.io"
# To connect, and between two packets of an answer.
TIMEOUT_SECONDS = (10, 120)
OCI, DOCKER = "application/vnd.oci.image", "application/vnd.docker"
INDEXES = (f"{OCI}.index.v1+json", f"{DOCKER}.distribution.manifest.list.v2+json")
MANIFESTS = (f"{OCI}.manifest.v1+json", f"{DOCKER}.distribution.manifest.v2+json")


class RegistryError(Exception):
    """A registry refused a request or cannot be reached; the message is the reason, for the end of a line.

    Attributes:
        status: The HTTP status; 0 without an answer.
    """

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Reference:
    """The name of an image: its registry, its repository there, and a tag or a digest."""

    host: str
    path: str
    version: str

    @classmethod
    def parse(cls, text: str, option: str) -> "Reference":
        """Reads `[HOST/]PATH[:TAG][@DIGEST]`; without a host it is Docker Hub's, as for Docker."""
        from docker.auth import resolve_repository_name
        from docker.errors import InvalidRepository
        from docker.utils import parse_repository_tag

        try:
            name, version = parse_repository_tag(text)
            if version and version.startswith("sha256:"):
                name, _ = parse_repository_tag(name)  # a tag beside the digest
            host, path = resolve_repository_name(name)
        except (InvalidRepository, IndexError, ValueError):
            host, path, version = "", "", None
        if not host or not re.fullmatch(r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*", path):
            raise SchedulerError(f"{option}{text}: must be an image as HOST/PATH, in lower case")
        return cls(host, path if "/" in path or host != "docker.io" else f"library/{path}", version or "latest")


class Repository:
    """One repository of a registry. Every method raises RegistryError if the registry refuses or cannot be reached."""

    def __init__(self, host: str, path: str) -> None:
        self.host, self.path = host, path
        server = DOCKER_HUB if host == "docker.io" else host
        # Docker, too, speaks plain HTTP to registries on this machine only.
        is_local = re.fullmatch(r"(localhost|127(\.\d+){3}|\[::1\])(:\d+)?", server)
        self._url = f"http{'' if is_local else 's'}://{server}/v2/{path}/"

    def manifest(self, version: str) -> tuple[str, dict[str, Any], str]:
        """Reads the media type, the content and the digest of a manifest or an index."""
        answer = self._call("GET", f"manifests/{version}", headers={"Accept": ", ".join((*MANIFESTS, *INDEXES))})
        digest = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
        content = answer.json()
        return content.get("mediaType") or answer.headers["Content-Type"].partition(";")[0], content, digest

    def has(self, kind: str, digest: str) -> bool:
        """Returns whether the repository has a blob (`blobs`) or a manifest (`manifests`)."""
        accept = {"Accept": ", ".join(MANIFESTS)}
        return self._call("HEAD", f"{kind}/{digest}", missing_is_none=True, headers=accept) is not None

    def read(self, digest: str) -> bytes:
        """Reads a small blob."""
        return self._call("GET", f"blobs/{digest}").content

    def mount(self, digest: str, source: str) -> bool:
        """Makes a blob of another repository of the same registry one of this one's; False if it has to be copied."""
        answer = self._call("POST", "blobs/uploads/", params={"mount": digest, "from": source})
        return answer.status_code == 201

    def copy(self, digest: str, size: int, source: "Repository") -> None:
        """Copies a blob from another registry, through this machine."""
        with source._call("GET", f"blobs/{digest}", stream=True) as answer, _one_line(self.host):
            self.put(digest, _Sized(answer.raw, size))

    def put(self, digest: str, content: "bytes | IO[bytes] | _Sized") -> None:
        """Uploads a blob."""
        place = urljoin(self._url, self._call("POST", "blobs/uploads/").headers["Location"])
        headers = {"Content-Type": "application/octet-stream"}
        self._call("PUT", place, params={"digest": digest}, data=content, headers=headers)

    def put_manifest(self, tag: str, content: bytes, media_type: str) -> None:
        """Uploads a manifest under a tag, without which a registry might collect it as garbage."""
        self._call("PUT", f"manifests/{tag}", data=content, headers={"Content-Type": media_type})

    @cached_property
    def _session(self) -> Any:
        import requests

        return requests.Session()

    def _call(self, verb: str, place: str, missing_is_none: bool = False, **options: Any) -> Any:
        """Sends a request, and sends it again with credentials if the registry asks for them."""
        with _one_line(self.host):
            answer = self._session.request(verb, urljoin(self._url, place), timeout=TIMEOUT_SECONDS, **options)
            if answer.status_code == 401 and verb != "PUT" and self._log_in(answer.headers):
                answer = self._session.request(verb, urljoin(self._url, place), timeout=TIMEOUT_SECONDS, **options)
        if answer.status_code == 404 and missing_is_none:
            return None
        if not answer.ok:
            raise RegistryError(_reason(answer, self.host, self._has_credentials), answer.status_code)
        return answer

    def _log_in(self, headers: Mapping[str, str]) -> bool:
        """Answers a challenge; returns whether there is something new to try."""
        kind, _, rest = headers.get("WWW-Authenticate", "").partition(" ")
        asked = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        user = self._credentials
        basic = (user["username"], user["password"]) if "username" in user else None
        if kind.lower() == "basic":
            self._session.auth = basic
            return basic is not None
        if kind.lower() != "bearer" or "realm" not in asked:
            return False
        realm, wanted = asked.pop("realm"), {key: asked[key] for key in ("service", "scope") if key in asked}
        if token := user.get("identitytoken"):
            form = wanted | {"grant_type": "refresh_token", "refresh_token": token, "client_id": "torchx-recsys"}
            answer = self._session.post(realm, data=form, timeout=TIMEOUT_SECONDS)
        else:
            answer = self._session.get(realm, params=wanted, auth=basic, timeout=TIMEOUT_SECONDS)
        if not answer.ok:
            raise RegistryError(_reason(answer, self.host, self._has_credentials), answer.status_code)
        given = answer.json()
        self._session.headers["Authorization"] = f"Bearer {given.get('token') or given['access_token']}"
        return True

    @property
    def _has_credentials(self) -> bool:
        return bool(self._credentials)

    @cached_property
    def _credentials(self) -> dict[str, str]:
        """The user's credentials for this registry, by lower-case names; empty without any."""
        from docker.auth import load_config
        from docker.errors import DockerException

        try:
            found = load_config().resolve_authconfig(self.host) or {}
        except (DockerException, ValueError) as error:
            raise RegistryError(f"Docker's configuration cannot be used: {' '.join(str(error).split())}") from error
        return {name.lower(): value for name, value in found.items() if value}


class _Sized:
    """A stream whose length is known; some registries refuse uploads in chunks without it."""

    def __init__(self, stream: Any, size: int) -> None:
        self._stream, self._size = stream, size

    def __len__(self) -> int:
        return self._size

    def read(self, size: int = -1) -> bytes:
        return self._stream.read(size if size >= 0 else None)


@contextmanager
def _one_line(host: str) -> Iterator[None]:
    from requests import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (RequestException, HTTPError) as error:
        reason = str(getattr(error, "reason", None) or (error.args and getattr(error.args[0], "reason", "")) or error)
        # Such as `<urllib3.connection.HTTPConnection object at 0x7f>: Failed to establish ...`
        raise RegistryError(f"{host} cannot be reached: {reason.rpartition('>: ')[2]}") from error


def _reason(answer: "Response", host: str, has_credentials: bool) -> str:
    """Returns why a registry refused, with the remedy."""
    if answer.status_code in (401, 403):
        known = "refuses the credentials of" if has_credentials else "has no credentials from"
        return f"{host} {known} docker login; try `docker login {host}`"
    if answer.status_code == 405:
        return f"{host} is read-only: it takes no uploads"
    try:
        first = answer.json()["errors"][0]
        said = ": ".join(filter(None, [first.get("code"), first.get("message")]))
    except (ValueError, KeyError, IndexError, TypeError, json.JSONDecodeError):
        said = answer.reason
    return f"{host} answers {answer.status_code} {said}"
