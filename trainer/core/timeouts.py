"""Time limits for waiting on other ranks; free of torch, as the configuration is checked against them."""

COLLECTIVE_SECONDS = 600.0  # the default of train.collective_timeout_seconds
AT_WORK_SECONDS = 10.0  # between two signs of rank 0 that it is at work on what the others wait for
FIRST_ERROR_SECONDS = 5  # for torchrun to find the failed rank before those that lost it leave
ANSWER_SECONDS = 5.0  # for a live rank to see on a busy machine that it is asked whether it lives
