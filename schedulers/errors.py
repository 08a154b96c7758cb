"""Errors of schedulers that the command line prints in one line."""


class SchedulerError(Exception):
    """A scheduler refused a request or cannot be reached; the message is one line that names the remedy."""


class Unreachable(SchedulerError):
    """A scheduler cannot be reached."""


class MaybeSubmitted(SchedulerError):
    """A scheduler did not answer a submission, and may still start the job."""


def check_least(option: str, value: int, least: int) -> None:
    """Refuses an option's value below the least that is allowed.

    Raises:
        SchedulerError: The value is below.
    """
    if value < least:
        raise SchedulerError(f"-cfg {option}={value}: must be {least} or more")
