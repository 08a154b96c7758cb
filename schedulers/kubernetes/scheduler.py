"""The `kubernetes` scheduler: TorchX's own Volcano Jobs, mended, with the reasons of their states and their logs."""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import yaml
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Stream
from torchx.schedulers.kubernetes_scheduler import KubernetesJob, KubernetesOpts, KubernetesScheduler
from torchx.specs import NONE, AppDef, AppDryRunInfo, AppState, CfgVal

from schedulers import log_files
from schedulers.code.workspace import CodeWorkspace, annotation, in_status, mount_archives
from schedulers.contract import refuse_array, warn_of_ignored
from schedulers.errors import SchedulerError, Unreachable
from schedulers.jobset import log
from schedulers.jobset.cluster import Object, api_client
from schedulers.jobset.pod import INSTANCE_TYPE
from schedulers.jobset.status import newest_warning, pod_reason
from schedulers.kubernetes import spec, status
from schedulers.kubernetes.cluster import VolcanoCluster
from schedulers.kubernetes.log import VolcanoReplica
from trainer.core.progress import TrainingProgress

logger = logging.getLogger(__name__)

BACKEND = "kubernetes"
DEFAULT_NAMESPACE = "default"
# Volcano changes the status of a job that starts or ends several times a second.
CANCEL_ATTEMPTS, PAUSE_SECONDS = 10, 0.2


class VolcanoScheduler(CodeWorkspace, KubernetesScheduler):  # pyrefly: ignore[invalid-inheritance]
    """Runs an app as TorchX's own scheduler does, under the same options: a Volcano Job with a task for each replica.

    An app id is `NAMESPACE:NAME`.
    """

    def builds_images(self) -> bool:
        """Returns True: Docker builds workspaces that have a Dockerfile of TorchX's."""
        return True

    def schedule(self, dryrun_info: AppDryRunInfo[KubernetesJob, KubernetesOpts]) -> str:
        """Pushes images that were built for the job, creates the Volcano Job, and returns the app id.

        Raises:
            SchedulerError: The cluster refuses it or cannot be reached.
        """
        request, cfg = dryrun_info.request, dryrun_info.cfg
        assert isinstance(cfg, KubernetesOpts)
        self.push_images(request.images_to_push)
        namespace = cfg.namespace or DEFAULT_NAMESPACE
        created = self._cluster(namespace).create(request.resource)
        return f"{namespace}:{created['metadata']['name']}"

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Returns the status of a job by two calls for any number of replicas, a few more while it waits or runs."""
        cluster, name = self._find(app_id)
        job = cluster.job(name)
        if job is None:
            return None
        pods = cluster.pods({status.INSTANCE_LABEL: name})
        reason = _why_pending(cluster, job, pods) if status.app_state(job) == AppState.PENDING else ""
        answer = status.describe(app_id, job, pods, reason)
        training = log.progress(cluster, pods) if answer.state == AppState.RUNNING else None
        said = [training.in_words() if training else "", answer.msg, *in_status(job)]
        answer.msg = "; ".join(filter(None, said)) or NONE
        return answer

    def progress(self, app_id: str) -> TrainingProgress | None:
        """Returns how far a job is that runs; None if no log shows it."""
        cluster, name = self._find(app_id)
        return log.progress(cluster, cluster.pods({status.INSTANCE_LABEL: name}))

    def describe_native(self, app_id: str) -> AppDryRunInfo[KubernetesJob] | None:
        """Returns the Volcano Job as it is on the cluster."""
        cluster, name = self._find(app_id)
        job = cluster.job(name)
        return AppDryRunInfo(KubernetesJob(images_to_push={}, resource=job), repr) if job else None

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        """Returns the Volcano Jobs of a namespace, the oldest first, ended ones too."""
        namespace = str((cfg or {}).get("namespace") or DEFAULT_NAMESPACE)
        return [
            ListAppResponse(f"{namespace}:{job['metadata']['name']}", status.app_state(job), name=status.app_name(job))
            for job in sorted(self._cluster(namespace).jobs(), key=lambda job: job["metadata"]["creationTimestamp"])
        ]

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Yields the lines of a replica, stdout and stderr together."""
        if streams not in (None, Stream.COMBINED):
            raise SchedulerError(f"--streams {streams.value}: Kubernetes keeps only one: combined")
        cluster, name = self._find(app_id)
        read = log.follow if should_tail else log.read
        return log_files.matching(regex, read(cluster, VolcanoReplica(name, role_name, k), since, until))

    def _submit_dryrun(self, app: AppDef, cfg: KubernetesOpts) -> AppDryRunInfo[KubernetesJob, KubernetesOpts]:
        refuse_array(app)
        spec.require_client()
        warn_of_ignored(app, self.backend, "capabilities", honoured=[INSTANCE_TYPE])
        info = self._with_overlays(spec.with_overlay(app), replace(cfg, validate_spec=False))
        namespace = cfg.namespace or DEFAULT_NAMESPACE
        handle = f"{BACKEND}://{self.session_name}/{namespace}:{info.request.resource['metadata']['name']}"
        info.request.resource = spec.mended(info.request.resource, app, handle)
        spec.check_names(info.request.resource, app)
        shipments = info.request.images_to_push.values()
        mount_archives(shipments, [task["template"] for task in info.request.resource["spec"]["tasks"]])
        if noted := annotation(shipments):
            metadata = info.request.resource["metadata"]
            metadata["annotations"] = (metadata.get("annotations") or {}) | noted
        if cfg.validate_spec:
            self._validate_request(info.request.resource, namespace)
        return info

    def _with_overlays(self, app: AppDef, cfg: KubernetesOpts) -> AppDryRunInfo[KubernetesJob, KubernetesOpts]:
        """Returns TorchX's request; an error of a pod that is merged into it is the user's."""
        try:
            return super()._submit_dryrun(app, cfg)
        except (OSError, AttributeError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
            files = [role.metadata["kubernetes"] for role in app.roles if "kubernetes" in role.metadata]
            if not files:
                raise
            raise SchedulerError(f"--metadata kubernetes={files[0]}: must be a file with a pod: {error}") from error

    def _validate_request(self, resource: Object, namespace: str) -> None:
        """Has the cluster validate a request; without a cluster a dry run goes on, and a submission fails later."""
        try:
            client = self._client or api_client(None, retries=False)
            VolcanoCluster(client, namespace).create(resource, dry_run=True)
        except Unreachable as error:
            logger.warning("no cluster validates the request: %s", error)

    def _cancel_existing(self, app_id: str) -> None:
        """Aborts the job: its pods save and leave, and its status stays. A job that has ended stays as it ended."""
        cluster, name = self._find(app_id)
        for _ in range(CANCEL_ATTEMPTS):
            job = cluster.job(name)
            if job is None or status.app_state(job) not in (AppState.PENDING, AppState.RUNNING, AppState.UNKNOWN):
                return
            if cluster.abort(job):
                return
            time.sleep(PAUSE_SECONDS)
        raise SchedulerError(
            f"{BACKEND}://{self.session_name}/{app_id}: not cancelled, Volcano changed it {CANCEL_ATTEMPTS} times"
            " meanwhile: cancel it again"
        )

    def _delete_existing(self, app_id: str) -> None:
        cluster, name = self._find(app_id)
        cluster.delete(name)

    def _api_client(self) -> Any:
        """Returns the client: of the kubeconfig file if there is one, as kubectl does; else of the pod's cluster."""
        if self._client is None:
            self._client = api_client(None)
        return self._client

    def _cluster(self, namespace: str) -> VolcanoCluster:
        return VolcanoCluster(self._api_client(), namespace)

    def _find(self, app_id: str) -> tuple[VolcanoCluster, str]:
        namespace, _, name = app_id.partition(":")
        if not namespace or not name or ":" in name:
            allowed = f"{BACKEND}://{self.session_name}/NAMESPACE:NAME, as `torchx run` and `torchx list` print it"
            raise SchedulerError(f"{BACKEND}://{self.session_name}/{app_id}: must be {allowed}")
        return self._cluster(namespace), name


def create_scheduler(session_name: str, client: Any = None, docker_client: Any = None, **_: Any) -> VolcanoScheduler:
    """Returns the scheduler that TorchX knows as `kubernetes`."""
    return VolcanoScheduler(session_name, client=client, docker_client=docker_client)


def _why_pending(cluster: VolcanoCluster, job: Object, pods: Iterable[Object]) -> str:
    """Returns why a job has not started: pods that cannot be made, its queue, or its gang; empty if its pods know."""
    newest = status.newest_pods(pods)
    if any(map(pod_reason, newest.values())):
        return ""
    lacks_pods = len(newest) < len(job["spec"]["tasks"])
    refused = newest_warning(cluster.events([job["metadata"]["name"]])) if lacks_pods else ""
    return refused or status.gang_reason(cluster.pod_group(job))
