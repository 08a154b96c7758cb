"""Named resources for `-h`: the hosts of trainer/plan/hardware.py as requests to a scheduler."""

from collections.abc import Callable
from functools import partial

from torchx.specs import Resource
from torchx.specs.named_resources_aws import K8S_ITYPE, MEM_TAX

from trainer.plan.hardware import REGISTERED, Host


def resource_of(host: Host) -> Resource:
    """Returns the request that gets one host, or a part of one."""
    capabilities = {K8S_ITYPE: host.instance_type} if host.instance_type else {}
    memory = host.memory_gib * int(1024 * MEM_TAX)
    return Resource(cpu=host.cpu, gpu=host.gpus, memMB=memory, capabilities=capabilities)


def __getattr__(name: str) -> Callable[[], Resource]:
    """Returns the factory of a registered resource by the name in its entry point, such as `gcp_a3_highgpu_8g`."""
    for host_name, host in REGISTERED.items():
        if name == host_name.replace("-", "_").replace(".", "_"):
            return partial(resource_of, host)
    raise AttributeError(name)
