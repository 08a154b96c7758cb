"""A run as a run of Weights & Biases."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp

from trainer.config.train import TrackerConfig
from trainer.extensions.trackers.records import Point, Records, Sent

SECONDS = 10  # to connect


class WandbRun:
    """A run of Weights & Biases, whose id is the key.

    Its client writes everything to `RUN_DIR/wandb` first, and its own process uploads that. So what was handed to it
    counts as sent, and `wandb sync` uploads what is left, or was written offline.

    Args:
        config: Where to; `uri` is a server of one's own.
        key: The id of the run.
        sent: What was handed to the client before.
        records: The run, for its name and configuration.
    """

    def __init__(self, config: TrackerConfig, key: str, sent: Sent, records: Records) -> None:
        import wandb

        self.sent = sent
        # Nothing but what is sent here: no command line, no code, no figures of the machine, nothing of the console.
        settings = wandb.Settings(
            base_url=config.uri or wandb.setup().settings.base_url,
            console="off",
            disable_code=True,
            disable_git=True,
            init_timeout=SECONDS,
            save_code=False,
            silent=True,
            x_disable_meta=True,
            x_disable_stats=True,
        )
        self._run = wandb.init(
            project=config.project,
            name=config.name or records.name,
            id=key,
            resume="allow",
            config=records.configuration(),
            dir=records.local_folder or Path(mkdtemp(prefix="wandb-")),
            settings=settings,
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def send(self, points: Sequence[Point]) -> None:
        """Hands points to the client, each a row of the run's history."""
        for point in points:
            self._run.log({"step": point.step, "_timestamp": point.seconds, **point.values})
            self.sent = self.sent | {point.group: point.step}

    def refer(self, references: Mapping[str, str]) -> None:
        """Adds URLs by name to the run's summary."""
        self._run.summary.update(dict(references))

    def close(self, state: str) -> None:
        """Waits until all is uploaded."""
        self._run.finish()
