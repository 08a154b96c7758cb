"""What a person at the terminal gets to read when a scheduler cannot do what was asked."""


class SchedulerError(Exception):
    """A scheduler refused a request or cannot be reached; the message is one line that says what to do."""
