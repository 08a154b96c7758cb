"""How long one process waits for the others; free of torch, for the configuration is checked against them."""

from datetime import timedelta

COLLECTIVE_TIMEOUT = timedelta(minutes=10)  # after which a collective that some rank does not join ends the job
FIRST_ERROR_SECONDS = 5  # for torchrun to find the rank that failed first, before those that lost it leave
