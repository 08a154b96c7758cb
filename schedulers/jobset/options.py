"""The options of the scheduler `jobset`."""

from dataclasses import dataclass

from torchx.schedulers.api import StructuredOpts

from components.launch import SHUTDOWN_TIMEOUT_SECONDS
from schedulers.errors import SchedulerError

# torchrun waits SHUTDOWN_TIMEOUT_SECONDS for its ranks to save, and then needs some to end them and itself.
DEFAULT_GRACE_SECONDS = SHUTDOWN_TIMEOUT_SECONDS + 30


@dataclass
class JobSetOpts(StructuredOpts):
    """The place of a job on the cluster, and the properties of its pods."""

    namespace: str = "default"
    """Namespace to run in."""

    context: str | None = None
    """Context of the kubeconfig file; the current one, or the cluster that the command runs in, if unset."""

    queue: str | None = None
    """Kueue LocalQueue: the job waits, suspended, until its whole quota is free."""

    queue_priority: str | None = None
    """Kueue WorkloadPriorityClass."""

    priority_class: str | None = None
    """PriorityClass of the pods."""

    service_account: str | None = None
    """ServiceAccount of the pods."""

    image_pull_secrets: list[str] | None = None
    """Secrets to pull the image with: A;B."""

    node_selector: dict[str, str] | None = None
    """Labels of the nodes to run on: KEY:VALUE;KEY:VALUE."""

    tolerations: list[str] | None = None
    """Taints to tolerate, KEY[:VALUE][:EFFECT], such as nvidia.com/gpu:NoSchedule;team:ads:NoSchedule."""

    secrets: dict[str, str] | None = None
    """Secrets to mount as directories: NAME:/path;NAME:/path."""

    env_secrets: list[str] | None = None
    """Secrets whose keys become environment variables: A;B."""

    shm_size: str | None = None
    """Largest size of /dev/shm, such as 16Gi; it is memory of the pod, which bounds it if unset."""

    reserved_millicpu: int = 100
    """CPU that a pod requests less than its limit, for what Kubernetes itself needs of a node; at most half of it."""

    reserved_memmb: int = 1024
    """Memory in MB that a pod requests less than its limit, for the same; at most half of it."""

    termination_grace_seconds: int = DEFAULT_GRACE_SECONDS
    """Seconds that a pod has to save and leave before it is killed, 120 or more."""

    ttl_seconds: int | None = None
    """Seconds after its end when the job, its pods and their logs are deleted; never if unset."""


def check(opts: JobSetOpts) -> None:
    """Refuses values that the cluster accepts and that do not work.

    Raises:
        SchedulerError: An option has a value that cannot work.
    """
    grace = opts.termination_grace_seconds
    if grace < SHUTDOWN_TIMEOUT_SECONDS:
        allowed = f"{SHUTDOWN_TIMEOUT_SECONDS} or more, or pods are killed while they save"
        raise SchedulerError(f"-cfg termination_grace_seconds={grace}: must be {allowed}")
    if opts.queue_priority and not opts.queue:
        raise SchedulerError(f"-cfg queue_priority={opts.queue_priority}: must come with a queue")
