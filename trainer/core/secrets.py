"""Hides what gives access to a URL in everything that is printed."""

import re

# A user and a password, or the value of a query parameter that signs the URL or carries a key. fsspec and the libraries
# of clouds quote whole URLs in their errors, so no caller can keep them out by itself.
SECRETS = re.compile(
    r"(?<=://)[^/?#\s'\"]+(?=@)"
    r"|(?<=[?&;])(?P<name>sig|x-(?:amz|goog)-[a-z-]+|[\w.-]*(?:token|signature|key|credential|password|secret)[\w.-]*)"
    r"=[^&\s'\"]*?(?=[,:;.)]*(?:[&\s'\"]|$))",  # punctuation that follows in a message is not the URL's
    re.IGNORECASE,
)


def without_secrets(text: object) -> str:
    """Returns a text with the secrets of the URLs in it replaced by `***`."""
    return SECRETS.sub(lambda found: f"{found['name']}=***" if found["name"] else "***", str(text))
