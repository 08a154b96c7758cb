"""Named resources for `-h`: the hosts of torchx_recsys/planner/hardware.py as requests to a scheduler."""

from functools import partial

from torchx.specs import Resource
from torchx.specs.named_resources_aws import K8S_ITYPE, MEM_TAX

from torchx_recsys.planner.hardware import REGISTERED, Host


def resource_of(host: Host) -> Resource:
    """Returns the request that gets one host, or a part of one."""
    capabilities = {K8S_ITYPE: host.instance_type} if host.instance_type else {}
    memory = host.memory_gib * int(1024 * MEM_TAX)
    return Resource(cpu=host.cpu, gpu=host.gpus, memMB=memory, capabilities=capabilities)


# The factories by their names in entry points, such as `gcp_a3_highgpu_8g`.
globals().update(
    {name.replace("-", "_").replace(".", "_"): partial(resource_of, host) for name, host in REGISTERED.items()}
)
