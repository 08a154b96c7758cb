"""The `local_docker` scheduler: TorchX's own, with the reason of a failure; a job that cannot start leaves nothing."""

import signal
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.docker_scheduler import DockerJob, DockerScheduler
from torchx.specs import NONE, AppDryRunInfo, AppState, ReplicaStatus

from schedulers.errors import SchedulerError
from schedulers.first_error import first_error, structured
from trainer.core.secrets import without_secrets

TAIL_LINES = 200


class ExplainedDockerScheduler(DockerScheduler):
    """Runs an app as containers of this machine, as TorchX does."""

    def schedule(self, dryrun_info: AppDryRunInfo[DockerJob, Any]) -> str:
        """Starts the containers and returns the app id.

        Raises:
            SchedulerError: The daemon refuses one of them; then none is left.
        """
        from docker.errors import APIError

        request = dryrun_info.request
        try:
            return super().schedule(dryrun_info)
        except APIError as error:
            for container in self._get_containers(request.app_id):
                with suppress(APIError):
                    container.remove(force=True)
            image = next((one.image for one in request.containers if not self._has(one.image)), None)
            missing = f"--image {image}: this machine's Docker does not have it, and cannot pull it"
            started = f"--image {request.containers[0].image}: cannot be started"
            raise SchedulerError(f"{missing if image else started}: {_explanation(error)}") from error

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Returns the status of a job, with the error of each replica that has failed."""
        found = super().describe(app_id)
        if not found or found.state != AppState.FAILED:
            return found
        for status in found.roles_statuses:
            status.replicas = [self._explained(app_id, replica) for replica in status.replicas]
        failed = [one for status in found.roles_statuses for one in status.replicas if one.state == AppState.FAILED]
        return replace(found, msg="; ".join(self._ending(app_id, one) for one in failed) or NONE)

    def _has(self, image: str) -> bool:
        from docker.errors import ImageNotFound

        try:
            self._docker_client.images.get(image)
        except ImageNotFound:
            return False
        return True

    def _explained(self, app_id: str, replica: ReplicaStatus) -> ReplicaStatus:
        if replica.state != AppState.FAILED:
            return replica
        container = self._get_container(app_id, replica.role, replica.id)
        state = container.attrs["State"]
        # The order of lines of both streams is not kept.
        logs = (container.logs(stdout=stdout, tail=TAIL_LINES).decode(errors="replace") for stdout in (False, True))
        message = state["Error"] or next(filter(None, map(first_error, logs)), "") or self._ending(app_id, replica)
        ended = datetime.fromisoformat(state["FinishedAt"][:19] + "+00:00").timestamp()
        return replace(replica, structured_error_msg=structured(message, state["ExitCode"], ended))

    def _ending(self, app_id: str, replica: ReplicaStatus) -> str:
        """Returns how the container of a replica ended."""
        container = self._get_container(app_id, replica.role, replica.id)
        state, host = container.attrs["State"], container.attrs["HostConfig"]
        memory = f", out of its {host['Memory'] >> 20} MB of memory" if state["OOMKilled"] else ""
        return f"{replica.role}/{replica.id} ended with exit code {_named(state['ExitCode'])}{memory}"


def _named(code: int) -> str:
    """Returns an exit code, with the name of the signal that it stands for."""
    with suppress(ValueError):
        return f"{code} ({signal.Signals(code - 128).name})"
    return str(code)


def _explanation(error: Any) -> str:
    """Returns why the daemon refused a request, in one line."""
    return without_secrets(" ".join(str(error.explanation or error).split()))


def create_scheduler(session_name: str, **kwargs: object) -> ExplainedDockerScheduler:
    """Returns the scheduler that TorchX knows as `local_docker`."""
    return ExplainedDockerScheduler(session_name)
