"""A run as a run of MLflow."""

import json
import os
import re
from collections.abc import Mapping, Sequence

from trainer.config.train import TrackerConfig
from trainer.extensions.trackers.records import Point, Records, Sent

KEY, SENT = "torchx_recsys.key", "torchx_recsys.sent"
NAMES = re.compile(r"[^\w\-. /]")  # MLflow's names have no other characters
# MLflow's own limits of a request, and of a value.
METRICS, PARAMS, LONGEST = 1000, 100, 6000
ENVIRONMENT = {
    # In place of two minutes and seven retries: what is not sent is sent later.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


class MlflowRun:
    """A run of MLflow, found by a key of ours, so that no run is begun twice whatever is killed.

    What was sent is a tag of the run that goes with the same request. MLflow keeps a point with the same step, time and
    value once, so that even a request whose answer was lost may be repeated.

    Args:
        config: Where to.
        key: The key.
        sent: Not used: the server knows better.
        records: The run, for the name and the configuration of a run that is not there yet.
    """

    def __init__(self, config: TrackerConfig, key: str, sent: Sent, records: Records) -> None:
        for variable, value in ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
        from mlflow.entities import RunStatus, RunTag
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=config.uri)
        self._tag = RunTag
        name_of = RunStatus.to_string
        self._states = {"finished": name_of(RunStatus.FINISHED), "stopped": name_of(RunStatus.KILLED)}
        running = name_of(RunStatus.RUNNING)
        experiment = self._experiment(config.project)
        found = self._client.search_runs([experiment], f"tags.`{KEY}` = '{key}'")
        tags = {KEY: key, **records.references()}
        name, began = config.name or records.name, int(records.started * 1000)
        run = found[0] if found else self._client.create_run(experiment, began, tags, name)
        self._id = run.info.run_id
        self.sent: Sent = json.loads(run.data.tags.get(SENT, "{}"))
        if run.info.status != running:
            self._client.update_run(self._id, running)
        self._send_configuration(run.data.params, records.configuration())

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        if found := self._client.get_experiment_by_name(name):
            return found.experiment_id
        try:
            return self._client.create_experiment(name)
        except MlflowException:
            if found := self._client.get_experiment_by_name(name):  # another run has created it meanwhile
                return found.experiment_id
            raise

    def _send_configuration(self, known: Mapping[str, str], configuration: Mapping[str, str]) -> None:
        """Sends the keys that the run lacks. MLflow refuses another value: the page of a run has those of a resume."""
        from mlflow.entities import Param

        named = {NAMES.sub("_", key): value[:LONGEST] for key, value in configuration.items()}
        left = [Param(key, value) for key, value in named.items() if key not in known]
        for begin in range(0, len(left), PARAMS):
            self._client.log_batch(self._id, params=left[begin : begin + PARAMS])

    def send(self, points: Sequence[Point]) -> None:
        """Sends points, in as few requests as MLflow takes."""
        from mlflow.entities import Metric

        batch: list[Metric] = []
        sent = {**self.sent}
        for place, point in enumerate(points):
            milliseconds = int(point.seconds * 1000)
            batch += [
                Metric(NAMES.sub("_", name), float(value), milliseconds, point.step)
                for name, value in point.values.items()
            ]
            sent[point.group] = point.step
            following = points[place + 1].values if place + 1 < len(points) else None
            if following is None or len(batch) + len(following) > METRICS:
                self._client.log_batch(self._id, batch, tags=[self._tag(SENT, json.dumps(sent))])
                self.sent, batch = {**sent}, []

    def refer(self, references: Mapping[str, str]) -> None:
        """Sends URLs by name."""
        self._client.log_batch(self._id, tags=[self._tag(name, url) for name, url in references.items()])

    def close(self, state: str) -> None:
        """Sends how the run has ended."""
        if state in self._states:
            self._client.set_terminated(self._id, self._states[state])
