"""Hides the secrets of URLs in all output."""

import os
import re

# fsspec and cloud libraries quote whole URLs in errors, so callers cannot keep secrets out. User names and passwords
# may hold characters that ought to be encoded; a number after a colon is a port. A query parameter counts as a secret
# by its name, or if its value looks like a signature or a token: long, with letters and digits.
NAMES = (
    r"sig|pwd|jwt|sas|otp|x-(?:amz|goog|oss|obs|cos)-[a-z-]+|auth(?!ors?=)[\w.-]*|[\w.-]*"
    r"(?:token|signature|key|credential|passw|passphrase|secret|session|bearer|cookie|_pwd|pwd_|_jwt|jwt_|_pass)[\w.-]*|pass"
)
RANDOM = r"(?=[^&\s'\"]*[0-9])(?=[^&\s'\"]*[A-Za-z])[\w+/=%~-]{24,}|eyJ[\w.-]+"
END = r"(?=[,:;.)]*(?:[&\s'\"]|$))"  # punctuation after the URL belongs to the message
SECRETS = re.compile(
    r"(?<=://)(?:[^/?#\s'\":]*:(?!\d{1,5}(?:[/?#]))(?:(?!://)[^\s'\"])*|[^/?#\s'\"]+)(?=@)"
    rf"|(?<=[?&;#])(?P<name>{NAMES})=[^&\s'\"]*?{END}"
    rf"|(?<=[?&;#])(?P<other>[\w.-]+)=(?:{RANDOM}){END}",
    re.IGNORECASE,
)


def without_secrets(text: object) -> str:
    """Returns a text with the secrets of its URLs replaced by `***`."""

    def hidden(found: re.Match[str]) -> str:
        name = found["name"] or found["other"]
        return f"{name}=***" if name else "***"

    return SECRETS.sub(hidden, str(text))


def has_secrets(text: str) -> bool:
    """Returns whether a URL in a text has a secret."""
    return SECRETS.search(text) is not None


def place(url: str) -> str:
    """Returns a URL for messages: quoted, without secrets, and a relative path with the absolute one."""
    is_relative = not re.match(r"[\w.+-]+:|/|~", url)
    return f"'{without_secrets(url)}'" + (f" ({without_secrets(os.path.abspath(url))})" if is_relative else "")
