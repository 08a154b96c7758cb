"""Errors of schedulers that the command line prints in one line."""


class SchedulerError(Exception):
    """A scheduler refused a request or cannot be reached; the message is one line that names the remedy."""
