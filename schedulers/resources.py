"""Named resources for `-h`: what TorchX asks a scheduler for to get one of the hosts of trainer/plan/hardware.py."""

from collections.abc import Callable
from functools import partial

from torchx.specs import Resource
from torchx.specs.named_resources_aws import K8S_ITYPE, MEM_TAX

from trainer.plan.hardware import REGISTERED, Host


def resource_of(host: Host) -> Resource:
    """Returns what TorchX asks a scheduler for."""
    capabilities = {K8S_ITYPE: host.instance_type} if host.instance_type else {}
    memory = host.memory_gib * int(1024 * MEM_TAX)
    return Resource(cpu=host.cpu, gpu=host.gpus, memMB=memory, capabilities=capabilities)


def __getattr__(name: str) -> Callable[[], Resource]:
    """The factory of a registered resource, as entry points name it: `h100_4`, `gcp_a3_highgpu_8g`, `cpu_2xlarge`."""
    for host_name, host in REGISTERED.items():
        if name == attribute(host_name):
            return partial(resource_of, host)
    raise AttributeError(name)


def attribute(host_name: str) -> str:
    """Returns a resource's name as Python can spell it."""
    return host_name.replace("-", "_").replace(".", "_")
