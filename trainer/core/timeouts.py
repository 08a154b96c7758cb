"""Time limits for waiting on other ranks, without torch, for the checks of the configuration."""

COLLECTIVE_SECONDS = 600.0  # the default of train.collective_timeout_seconds
AT_WORK_SECONDS = 10.0  # between two signs that rank 0 is at work while the others wait
FIRST_ERROR_SECONDS = 5  # for torchrun to find the failed rank before the ranks that lost it leave
ANSWER_SECONDS = 5.0  # for a live rank on a busy machine to notice a question whether it lives
NAME_SECONDS = 30.0  # for the name of another host to resolve
REACH_SECONDS = 50.0  # for another host to answer; with the start of torch, within a minute
QUIET_SECONDS = 20.0  # of waiting for another host, until a line says so
