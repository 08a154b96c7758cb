"""The options of the scheduler `jobset`."""

from dataclasses import dataclass

from torchx.schedulers.api import StructuredOpts

from schedulers.contract import MAX_FREE_RESTARTS, SHUTDOWN_TIMEOUT_SECONDS
from schedulers.errors import SchedulerError, check_least

# torchrun gives its ranks SHUTDOWN_TIMEOUT_SECONDS to save, and then needs some time to end them and itself.
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
    """Taints to tolerate, as `KEY[:VALUE][:EFFECT]`, such as nvidia.com/gpu:NoSchedule;team:ads:NoSchedule."""

    secrets: dict[str, str] | None = None
    """Secrets to mount as directories: NAME:/path;NAME:/path."""

    env_secrets: list[str] | None = None
    """Secrets whose keys become environment variables: A;B."""

    env_secret_keys: dict[str, str] | None = None
    """Environment variables with the value of one key of a Secret: VARIABLE:SECRET/KEY;VARIABLE:SECRET/KEY."""

    labels: dict[str, str] | None = None
    """Labels of the JobSet and its pods: KEY:VALUE;KEY:VALUE. The labels of TorchX, JobSet and Kueue stay."""

    annotations: dict[str, str] | None = None
    """Annotations of the JobSet and its pods: KEY:VALUE;KEY:VALUE."""

    devices: dict[str, str] | None = None
    """Extended resources of each pod beside its GPUs: RESOURCE:COUNT;RESOURCE:COUNT, such as rdma/hca:1."""

    ipc_lock: bool = False
    """Let the container lock memory (IPC_LOCK), as RDMA does."""

    run_as_user: int | None = None
    """User id of the pods' processes; the image's if unset. With any other id than 0, processes cannot become root."""

    run_as_group: int | None = None
    """Group id of the pods' processes."""

    restricted: bool = False
    """Comply with the Pod Security Standard `restricted`: no root user, no capabilities, no rights beside the first."""

    fs_group: int | None = None
    """Group id that volumes are given to."""

    shm_size: str | None = None
    """Largest size of /dev/shm, such as 16Gi; it counts as memory of the pod, which is the bound if unset."""

    reserved_millicpu: int = 100
    """Millicores by which a pod's request is below its limit, for Kubernetes itself; at most half of the limit."""

    reserved_memmb: int = 1024
    """MB by which a pod's memory request is below its limit, for Kubernetes itself; at most half of the limit."""

    termination_grace_seconds: int = DEFAULT_GRACE_SECONDS
    """Seconds that a pod has to save and leave before it is killed, 120 or more."""

    max_free_restarts: int = MAX_FREE_RESTARTS
    """Restarts that use up no retry; after these and `max_retries`, each attempt has to save a checkpoint."""

    rank0_wait_seconds: int = 1800
    """Seconds that a replica waits for replica 0 to start before it fails."""

    after: list[str] | None = None
    """Handles of jobs in this namespace that must succeed before this one starts: A,B."""

    after_any: list[str] | None = None
    """Handles of jobs in this namespace that must end before this one starts, however they do: A,B."""

    ttl_seconds: int | None = None
    """Seconds from the end of the job until it, its pods and their logs are deleted; never if unset."""


def check(opts: JobSetOpts) -> None:
    """Refuses values that the cluster accepts but that cannot work.

    Raises:
        SchedulerError: An option has a value that cannot work.
    """
    grace = opts.termination_grace_seconds
    if grace < SHUTDOWN_TIMEOUT_SECONDS:
        allowed = f"{SHUTDOWN_TIMEOUT_SECONDS} or more, or pods are killed while they save"
        raise SchedulerError(f"-cfg termination_grace_seconds={grace}: must be {allowed}")
    for name, place in (opts.env_secret_keys or {}).items():
        if not all(place.partition("/")):
            raise SchedulerError(f"-cfg env_secret_keys={name}:{place}: must be VARIABLE:SECRET/KEY")
    for name, count in (opts.devices or {}).items():
        if not count.isdecimal():
            raise SchedulerError(f"-cfg devices={name}:{count}: must be RESOURCE:COUNT with a whole number")
    if opts.restricted and opts.ipc_lock:
        raise SchedulerError("-cfg ipc_lock=True: must not come with restricted=True, which allows no capability")
    if opts.restricted and opts.run_as_user == 0:
        raise SchedulerError("-cfg run_as_user=0: must be another user with restricted=True")
    check_least("max_free_restarts", opts.max_free_restarts, 0)
    check_least("rank0_wait_seconds", opts.rank0_wait_seconds, 1)
    if opts.queue_priority and not opts.queue:
        raise SchedulerError(f"-cfg queue_priority={opts.queue_priority}: must come with a queue")
