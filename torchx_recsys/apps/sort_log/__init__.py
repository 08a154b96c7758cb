"""A log of events, sorted by user and time, from which training gathers histories while it reads samples."""
