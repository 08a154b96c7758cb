"""The parts of a step: names of where time goes, for forecasts, measurements and profiles.

A detail of a part is named `PART: DETAIL`, as in `update: tables`.
"""

INPUT, FORWARD, EXCHANGE, BACKWARD, UPDATE, OTHER = "input", "forward", "exchange", "backward", "update", "other"
PARTS = (INPUT, FORWARD, EXCHANGE, BACKWARD, UPDATE, OTHER)
