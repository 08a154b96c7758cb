"""Hides the secrets of URLs in all output."""

import re

# A user and a password, or the value of a query parameter that signs the URL or carries a key. fsspec and cloud
# libraries quote whole URLs in errors, so no caller can keep secrets out by itself.
SECRETS = re.compile(
    r"(?<=://)[^/?#\s'\"]+(?=@)"
    r"|(?<=[?&;])(?P<name>sig|x-(?:amz|goog)-[a-z-]+|[\w.-]*(?:token|signature|key|credential|password|secret)[\w.-]*)"
    r"=[^&\s'\"]*?(?=[,:;.)]*(?:[&\s'\"]|$))",  # punctuation after the URL belongs to the message
    re.IGNORECASE,
)


def without_secrets(text: object) -> str:
    """Returns a text with the secrets of its URLs replaced by `***`."""
    return SECRETS.sub(lambda found: f"{found['name']}=***" if found["name"] else "***", str(text))
