"""Connects to Redis, and turns its errors into one line that names the flag, the address and the remedy."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from trainer.core.errors import InputError, StorageError, first_line
from trainer.core.secrets import place

if TYPE_CHECKING:
    from redis import Redis

SCHEMES = ("redis", "rediss")
USER, PASSWORD = "REDIS_USERNAME", "REDIS_PASSWORD"  # environment variables
FORM = "write redis://HOST:PORT/DATABASE, or rediss:// with TLS"
CREDENTIALS = f"give them in the variables {USER} and {PASSWORD}, or as USER:PASSWORD@ in the URL"
Result = TypeVar("Result")


def is_of_redis(url: str) -> bool:
    """Returns whether a URL is that of a Redis."""
    return url.partition("://")[0] in SCHEMES


def connect(url: str, key: str, timeout_seconds: float) -> "Redis":
    """Returns a client, before it has connected.

    Args:
        url: `redis://` or `rediss://`.
        key: The flag or argument of the URL.
        timeout_seconds: How long to wait for a connection, and for each answer.

    Raises:
        InputError: The URL cannot be used, or the package is not installed.
    """
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise InputError(
            f"{key} is {place(url)}, which needs the package redis; pip install 'torchx-recsys[redis]'"
        ) from error
    try:
        parts = urlsplit(url)
        has_host, has_port = bool(parts.hostname), parts.port != 0
    except ValueError as error:
        raise InputError(f"{key} is {place(url)}: {error}; {FORM}") from error
    if not (is_of_redis(url) and has_host and has_port):
        raise InputError(f"{key} is {place(url)}, which is no address of a Redis; {FORM}")
    if parts.path.strip("/") and not parts.path.strip("/").isdigit():
        raise InputError(f"{key} is {place(url)}, whose path is no number of a database; {FORM}")
    given = {
        "username": parts.username or os.environ.get(USER) or None,
        "password": parts.password or os.environ.get(PASSWORD) or None,
    }
    try:
        return redis.Redis.from_url(
            url,
            **{name: value for name, value in given.items() if value and not getattr(parts, name)},
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            protocol=2,
            retry=Retry(NoBackoff(), 0),  # attempts are counted and reported here
        )
    except (ValueError, TypeError) as error:
        raise InputError(f"{key} is {place(url)}: {first_line(error)}; {FORM}") from error


@contextmanager
def store_errors(key: str, url: str) -> Iterator[None]:
    """Turns errors of Redis in the block into one line.

    Raises:
        InputError: The store cannot be used as it is.
        StorageError: It does not answer, so another attempt may succeed.
    """
    import redis
    from redis import exceptions as of

    def refused(why: str) -> InputError:
        return InputError(f"{key} is {place(url)}, {why}")

    try:
        yield
    except of.NoPermissionError as error:
        raise refused(f"which does not permit this user to do that: {first_line(error)}; grant it") from error
    except (redis.AuthenticationError, redis.AuthenticationWrongNumberOfArgsError) as error:
        raise refused(f"which refuses the user or the password: {first_line(error)}; {CREDENTIALS}") from error
    except redis.OutOfMemoryError as error:
        raise refused("whose memory is full; raise its maxmemory, or keep fewer versions") from error
    except redis.ReadOnlyError as error:
        raise refused("which is a replica and takes no writes; name its primary") from error
    except (of.MovedError, of.AskError, of.ClusterDownError, of.CrossSlotTransactionError) as error:
        raise refused("which is a part of a cluster; name a Redis without cluster mode") from error
    except of.InvalidResponse as error:
        raise refused("where something else than a Redis answers; name a Redis") from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise StorageError(
            f"{key} is {place(url)}, which does not answer: {first_line(error)}; check the address, the network and "
            "whether it runs (with TLS: rediss://)"
        ) from error
    except redis.ResponseError as error:
        if "out of range" in str(error).lower() and "index" in str(error).lower():
            raise refused(f"which has no such database: {first_line(error)}; name another number") from error
        raise refused(
            f"which refuses a command: {first_line(error)}; it has to be a Redis of version 6.2 or newer"
        ) from error
    except TypeError as error:  # of a parameter in the URL, at the first connection
        if "unexpected keyword argument" not in str(error):
            raise
        raise refused(f"whose parameters are not known: {first_line(error)}; leave them out") from error


def retried(call: Callable[[], Result], waits: tuple[float, ...], report: Callable[[str], None]) -> Result:
    """Returns the result of a call that may be repeated, after waits if the store does not answer.

    Args:
        call: The call.
        waits: Seconds to wait before each further attempt.
        report: Takes a line on each wait.
    """
    import redis

    for number, seconds in enumerate(waits, 2):
        try:
            return call()
        except (redis.AuthenticationError, redis.MaxConnectionsError):  # which are ConnectionErrors there
            raise
        except (redis.ConnectionError, redis.TimeoutError) as error:
            attempt = f"attempt {number} of {len(waits) + 1} in {seconds:g} s"
            report(f"the store does not answer: {first_line(error)}; {attempt}")
            time.sleep(seconds)
    return call()


def facts_of(client: "Redis", section: str) -> dict[str, Any]:
    """Returns a section of INFO; empty where the store does not permit it."""
    import redis

    try:
        return client.info(section)
    except redis.exceptions.NoPermissionError:
        return {}
    except redis.ResponseError:
        return {}
