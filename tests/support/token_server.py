"""The server that gives out Bearer tokens for a registry, as those of public registries do."""

import base64
import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from container_registry import PASSWORD, USER
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

SERVICE, ISSUER = "registry", "issuer"


@contextmanager
def token_server(folder: Path) -> Iterator[tuple[dict, list[str]]]:
    """Starts the server; yields the registry's section `auth`, and the scopes that were asked for.

    A user without a password may only pull.
    """
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    certificate = _certificate(key)
    (folder / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            scopes = parse_qs(urlsplit(self.path).query).get("scope", [])
            asked.extend(scopes)
            known = f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
            sent = self.headers.get("Authorization")
            answer = {"token": _token(key, certificate, scopes, push=sent == known)}
            self.send_response(401 if sent not in (None, known) else 200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    realm = f"http://127.0.0.1:{server.server_port}/token"
    yield (
        {"token": {"realm": realm, "service": SERVICE, "issuer": ISSUER, "rootcertbundle": str(folder / "ca.pem")}},
        asked,
    )
    server.shutdown()
    thread.join()
    server.server_close()


def _certificate(key: rsa.RSAPrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, ISSUER)])
    now = datetime.now(UTC)
    unsigned = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    unsigned = unsigned.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    return unsigned.sign(key, hashes.SHA256())


def _token(key: rsa.RSAPrivateKey, certificate: x509.Certificate, scopes: list[str], push: bool) -> str:
    """A JSON Web Token for the scopes, `repository:PATH:pull,push`."""
    chain = base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode()
    kinds = [one.split(":") for scope in scopes for one in scope.split()]
    access = [
        {"type": kind, "name": path, "actions": [one for one in actions.split(",") if push or one == "pull"]}
        for kind, path, actions in kinds
    ]
    now = int(time.time())
    claims = {"iss": ISSUER, "sub": "", "aud": SERVICE, "exp": now + 300, "nbf": now - 10, "iat": now}
    claims |= {"jti": uuid.uuid4().hex, "access": access}
    parts = [json.dumps(one).encode() for one in ({"typ": "JWT", "alg": "RS256", "x5c": [chain]}, claims)]
    text = b".".join(map(_base64, parts))
    return (text + b"." + _base64(key.sign(text, padding.PKCS1v15(), hashes.SHA256()))).decode()


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
