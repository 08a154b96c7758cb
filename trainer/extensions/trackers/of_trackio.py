"""A run as a run of Trackio."""

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout

from trainer.config.train import TrackerConfig
from trainer.extensions.trackers.records import Point, Records, Sent

KEY_LETTERS = 8


class TrackioRun:
    """A run of Trackio, in its files on this host, `TRACKIO_DIR`, or on a server.

    Trackio finds a run by its name, so the name ends with letters of the key. Its client keeps what a server does not
    take, and sends that later; what was handed to it counts as sent.

    Args:
        config: Where to; `uri` is a server, whose write token TRACKIO_WRITE_TOKEN has.
        key: The id of the run.
        sent: What was handed to the client before.
        records: The run, for its name and configuration.
    """

    def __init__(self, config: TrackerConfig, key: str, sent: Sent, records: Records) -> None:
        import trackio  # pyrefly: ignore[missing-import]

        self.sent = sent
        with redirect_stdout(io.StringIO()):  # it advertises its dashboard
            self._run = trackio.init(
                project=config.project,
                name=f"{config.name or records.name}-{key[:KEY_LETTERS]}",
                server_url=config.uri,
                config=records.configuration(),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def send(self, points: Sequence[Point]) -> None:
        """Hands points to the client."""
        for point in points:
            self._run.log(dict(point.values), step=point.step)
            self.sent = self.sent | {point.group: point.step}

    def refer(self, references: Mapping[str, str]) -> None:
        """Logs URLs by name at the last step."""
        self._run.log(dict(references), step=max(self.sent.values(), default=0))

    def close(self, state: str) -> None:
        """Waits until all is written, or sent."""
        with redirect_stdout(io.StringIO()):
            self._run.finish()
