"""The `jobset` scheduler: one JobSet for each job on Kubernetes, with Kueue for queues and quota."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Any
from urllib.parse import quote

from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchx.specs import AppDef, AppDryRunInfo, AppState, CfgVal, runopts

from schedulers import log_files
from schedulers.code.workspace import CodeWorkspace
from schedulers.contract import refuse_array, warn_of_ignored
from schedulers.errors import SchedulerError
from schedulers.jobset import log, names, spec, status
from schedulers.jobset.after import WAITER, own_predecessors, predecessors_of
from schedulers.jobset.cluster import Cluster, Object
from schedulers.jobset.names import Submission, unique_name
from schedulers.jobset.options import JobSetOpts, check
from schedulers.jobset.pod import INSTANCE_TYPE
from schedulers.jobset.spec import JobSetRequest
from schedulers.predecessors import outstanding, waits_for
from trainer.core.progress import TrainingProgress

BACKEND = "jobset"


class JobSetScheduler(CodeWorkspace, Scheduler[JobSetOpts]):
    """Runs an app as a JobSet: an Indexed Job for each role, a headless service, restarts of the whole job.

    An app id is `NAMESPACE:NAME`, or `CONTEXT:NAMESPACE:NAME` if the job was submitted to a context by name: that is
    enough to find the job from another shell.
    """

    def __init__(self, session_name: str) -> None:
        super().__init__(BACKEND, session_name)
        self._cluster = cache(Cluster)

    def schedule(self, dryrun_info: AppDryRunInfo) -> str:
        """Creates the JobSet and returns the app id.

        Raises:
            SchedulerError: The cluster refuses it or cannot be reached, or a job to wait for is gone or has failed.
        """
        request: JobSetRequest = dryrun_info.request
        outstanding(predecessors_of(request.resource), self._look)
        self.push_images(request.images_to_push)
        metadata = request.resource["metadata"]
        self._cluster(request.context, metadata["namespace"]).create(request.resource)
        return _app_id(request.context, metadata)

    def identity(self, request: JobSetRequest) -> str:
        """Returns a name for the job of a request, known before the job is submitted."""
        return _app_id(request.context, request.resource["metadata"])

    def find(self, identity: str) -> str | None:
        """Returns the app id of the job with an identity; None if it was not submitted."""
        cluster, name = self._find(identity)
        return identity if cluster.jobset(name) else None

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Returns the status of a job by a few calls for any number of replicas; one of them reads a log's end."""
        cluster, name = self._find(app_id)
        jobset = cluster.jobset(name)
        if jobset is None:
            return None
        pods = cluster.pods({names.JOBSET_LABEL: name})
        workloads = cluster.workloads(jobset) if jobset["spec"].get("suspend") else []
        pending = status.app_state(jobset) == AppState.PENDING and not status.suspension(jobset)
        waits = waits_for(predecessors_of(jobset) if pending else [], self._look)
        warnings = cluster.warnings(jobset) if pending and status.lacks_pods(jobset, pods) else []
        answer = status.describe(app_id, jobset, pods, workloads, waits, status.newest_warning(warnings))
        if answer.state == AppState.RUNNING and (training := log.progress(cluster, pods)):
            answer.msg = "; ".join(filter(None, [training.in_words(), answer.msg]))
        return answer

    def describe_native(self, app_id: str) -> AppDryRunInfo[JobSetRequest] | None:
        """Returns the JobSet as it is on the cluster."""
        cluster, name = self._find(app_id)
        jobset = cluster.jobset(name)
        return AppDryRunInfo(JobSetRequest(None, jobset), str) if jobset else None

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        """Returns the jobs that TorchX submitted to a namespace, the oldest first, ended ones too."""
        opts = JobSetOpts.from_cfg(self.run_opts().resolve(cfg or {}))
        found = self._cluster(opts.context, opts.namespace).jobsets()
        return [
            ListAppResponse(
                _app_id(opts.context, jobset["metadata"]),
                status.app_state(jobset),
                name=names.labels_of(jobset).get("app.kubernetes.io/name", ""),
            )
            for jobset in sorted(found, key=lambda jobset: jobset["metadata"]["creationTimestamp"])
        ]

    def progress(self, app_id: str) -> TrainingProgress | None:
        """Returns how far a job is that runs; None if no log shows it."""
        cluster, name = self._find(app_id)
        return log.progress(cluster, cluster.pods({names.JOBSET_LABEL: name}))

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
        lines = read(cluster, log.Replica(name, role_name, k), since, until)
        return log_files.matching(regex, lines)

    def _submit_dryrun(self, app: AppDef, cfg: JobSetOpts) -> AppDryRunInfo[JobSetRequest, JobSetOpts]:
        check(cfg)
        refuse_array(app)
        warn_of_ignored(app, self.backend, "capabilities", honoured=[INSTANCE_TYPE])
        name = unique_name(app, [WAITER] if own_predecessors(cfg) else [])
        app_id = _app_id(cfg.context, {"namespace": cfg.namespace, "name": name})
        job = Submission(app, cfg, name, f"{self.backend}://{self.session_name}/{app_id}")
        shipments = self.dryrun_push_images(app, {})
        return AppDryRunInfo(JobSetRequest(cfg.context, spec.jobset(job, shipments.values()), shipments), str)

    def _run_opts(self) -> runopts:
        return JobSetOpts.as_runopts()

    def _cancel_existing(self, app_id: str) -> None:
        """Suspends the job for good: its pods save and leave, its quota becomes free, and its status stays."""
        cluster, name = self._find(app_id)
        change: Object = {"metadata": {"annotations": {status.CANCELLED: "true"}}}
        jobset = cluster.jobset(name)
        workloads = cluster.workloads(jobset) if jobset else []
        if not workloads:
            # Kueue ignores a job without a queue if it has not seen it before.
            change = {"metadata": change["metadata"] | {"labels": {names.QUEUE_LABEL: None}}, "spec": {"suspend": True}}
        cluster.patch(name, change)
        for workload in workloads:
            # Kueue would resume an admitted job that another client suspended.
            cluster.deactivate(workload)

    def _delete_existing(self, app_id: str) -> None:
        cluster, name = self._find(app_id)
        cluster.delete(name)

    def _look(self, app_id: str) -> tuple[str | None, str]:
        """Returns the state of another job, None if it is gone; its log, which may be long, is not read."""
        cluster, name = self._find(app_id)
        jobset = cluster.jobset(name)
        return (status.app_state(jobset).name if jobset else None), ""

    def _find(self, app_id: str) -> tuple[Cluster, str]:
        place = names.place_of(app_id)
        if place is None:
            allowed = f"{BACKEND}://{self.session_name}/NAMESPACE:NAME, as `torchx run` and `torchx list` print it"
            raise SchedulerError(f"{BACKEND}://{self.session_name}/{app_id}: must be {allowed}")
        context, namespace, name = place
        return self._cluster(context, namespace), name


def create_scheduler(session_name: str, **kwargs: Any) -> JobSetScheduler:
    """Returns the scheduler that TorchX knows as `jobset`."""
    return JobSetScheduler(session_name)


def _app_id(context: str | None, metadata: Mapping[str, Any]) -> str:
    place = [quote(context, safe="")] if context else []
    return ":".join([*place, metadata["namespace"], metadata["name"]])
