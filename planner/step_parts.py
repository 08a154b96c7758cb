"""The parts of a step: the words of forecasts, of measurements and of profiles for where its time goes.

What is part of a part has the name `PART: DETAIL`, as in `update: tables`.
"""

INPUT, FORWARD, EXCHANGE, BACKWARD, UPDATE, OTHER = "input", "forward", "exchange", "backward", "update", "other"
PARTS = (INPUT, FORWARD, EXCHANGE, BACKWARD, UPDATE, OTHER)
