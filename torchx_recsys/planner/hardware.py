"""Memory and bandwidths of common hosts, and clusters of hosts.

AWS's and AMD's hosts serve only the planner: TorchX itself registers resources such as `aws_p5.48xlarge`.

Figures are the vendors'. GB/s is 10^9 bytes per second. NVLink bandwidth adds both directions of one GPU, as data
sheets do. Network bandwidth is one direction, and adds all adapters of the host for traffic between GPUs.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU."""

    memory_gib: int
    """Total memory that the driver reports, rounded down; less than the round number on the data sheet."""
    hbm_gb_per_second: float
    """Bandwidth of GPU memory."""
    nvlink_gb_per_second: float
    """Bandwidth to the other GPUs of the host, both directions together."""
    fp32_tflops: float
    """Fp32 operations per second, in 10^12, without tensor cores."""
    tf32_tflops: float
    """TF32 operations per second on tensor cores, in 10^12; data sheets from the H100 on double it, for sparsity."""
    half_tflops: float
    """Operations per second in bf16 or fp16, in 10^12."""
    source: str
    """The vendor's data sheet."""

    def tflops(self, precision: Literal["fp32", "tf32", "bf16", "fp16"]) -> float:
        """Returns the throughput at a precision, in 10^12 operations per second."""
        return {"fp32": self.fp32_tflops, "tf32": self.tf32_tflops}.get(precision, self.half_tflops)


@dataclass(frozen=True, kw_only=True)
class Host:
    """A kind of host, or a part of one."""

    cpu: int
    """Logical cores."""
    memory_gib: int
    """Host memory. The system keeps a part: a job can request 96 % of it, as in TorchX's AWS resources."""
    gpus: int = 0
    """Number of GPUs."""
    gpu: Gpu | None = None
    """Kind of GPU."""
    network_gb_per_second: float = 0.0
    """Bandwidth to other hosts, one direction; 0 if unknown."""
    instance_type: str | None = None
    """The cloud's instance type; Kubernetes places the job only on nodes of this type."""
    source: str
    """The vendor's page."""

    @property
    def network_gb_per_second_per_gpu(self) -> float:
        """Network bandwidth per GPU."""
        return self.network_gb_per_second / max(1, self.gpus)

    def part(self, gpus: int) -> "Host":
        """Returns the part of the host that goes with `gpus` GPUs."""
        return replace(
            self,
            cpu=self.cpu * gpus // self.gpus,
            memory_gib=self.memory_gib * gpus // self.gpus,
            gpus=gpus,
            network_gb_per_second=self.network_gb_per_second_per_gpu * gpus,
        )


GIB = 1024**3  # bytes in a GiB

NVIDIA = "https://www.nvidia.com/en-us/data-center"
NVIDIA_DOCS = "https://docs.nvidia.com/dgx"
AWS = "https://aws.amazon.com/ec2/instance-types"
AMD = "https://www.amd.com/en/products/accelerators/instinct"
GCP = "https://cloud.google.com/compute/docs/accelerator-optimized-machines"

OF_A100: dict[str, Any] = {"fp32_tflops": 19.5, "tf32_tflops": 156, "half_tflops": 312, "source": f"{NVIDIA}/a100/"}
OF_HOPPER: dict[str, Any] = {"fp32_tflops": 67, "tf32_tflops": 494.5, "half_tflops": 989.5}
OF_B200: dict[str, Any] = {"fp32_tflops": 75, "tf32_tflops": 1100, "half_tflops": 2250}
A100_40GB = Gpu(memory_gib=39, hbm_gb_per_second=1555, nvlink_gb_per_second=600, **OF_A100)
A100 = Gpu(memory_gib=79, hbm_gb_per_second=2039, nvlink_gb_per_second=600, **OF_A100)
H100 = Gpu(memory_gib=79, hbm_gb_per_second=3350, nvlink_gb_per_second=900, source=f"{NVIDIA}/h100/", **OF_HOPPER)
H200 = Gpu(memory_gib=139, hbm_gb_per_second=4800, nvlink_gb_per_second=900, source=f"{NVIDIA}/h200/", **OF_HOPPER)
B200 = Gpu(memory_gib=178, hbm_gb_per_second=8000, nvlink_gb_per_second=1800, source=f"{NVIDIA}/dgx-b200/", **OF_B200)
# Without TF32 on its matrix cores; the links to its seven neighbours together.
MI350X = Gpu(
    memory_gib=287,
    hbm_gb_per_second=8000,
    nvlink_gb_per_second=1075,
    fp32_tflops=144.2,
    tf32_tflops=144.2,
    half_tflops=2306.9,
    source=f"{AMD}/mi350/mi350x.html",
)


def _host(
    gpu: Gpu, cpu: int, memory_gib: int, gbit_per_second: float, source: str, instance: str | None = None
) -> Host:
    """Returns a host of eight GPUs."""
    return Host(
        cpu=cpu,
        memory_gib=memory_gib,
        gpus=8,
        gpu=gpu,
        network_gb_per_second=gbit_per_second / 8,
        instance_type=instance,
        source=source,
    )


# Cores and memory: the smallest of NVIDIA's DGX and the hosts of AWS and Google with this GPU. Network: the DGX's.
WHOLE = {
    "a100": _host(A100, 96, 1152, 8 * 200, f"{NVIDIA_DOCS}/dgxa100-user-guide/"),
    "h100": _host(H100, 192, 1872, 8 * 400, f"{NVIDIA_DOCS}/dgxh100-user-guide/"),
    "h200": _host(H200, 192, 2048, 8 * 400, f"{NVIDIA_DOCS}/dgxh100-user-guide/"),
    "b200": _host(B200, 192, 2048, 8 * 400, f"{NVIDIA_DOCS}/dgxb200-user-guide/"),
}

PARTS = {f"{name}_{gpus}": host.part(gpus) for name, host in WHOLE.items() for gpus in (4, 2, 1)}

GOOGLE = {
    f"gcp_{instance}": _host(gpu, cpu, memory_gib, gbit_per_second, GCP, instance)
    for instance, gpu, cpu, memory_gib, gbit_per_second in (
        ("a2-highgpu-8g", A100_40GB, 96, 680, 100),
        ("a2-ultragpu-8g", A100, 96, 1360, 100),
        ("a3-highgpu-8g", H100, 208, 1872, 800),
        ("a3-megagpu-8g", H100, 208, 1872, 1600),
        ("a3-ultragpu-8g", H200, 224, 2952, 3200),
        ("a4-highgpu-8g", B200, 224, 3968, 3200),
    )
}

AMAZON = {
    f"aws_{instance}": _host(gpu, cpu, memory_gib, gbit_per_second, f"{AWS}/{page}/", instance)
    for instance, gpu, cpu, memory_gib, gbit_per_second, page in (
        ("p4d.24xlarge", A100_40GB, 96, 1152, 400, "p4"),
        ("p4de.24xlarge", A100, 96, 1152, 400, "p4"),
        ("p5.48xlarge", H100, 192, 2048, 3200, "p5"),
        ("p5e.48xlarge", H200, 192, 2048, 3200, "p5"),
        ("p5en.48xlarge", H200, 192, 2048, 3200, "p5"),
        ("p6-b200.48xlarge", B200, 192, 2048, 3200, "p6"),
    )
}

# TorchX's own tiers end at cpu.xlarge, 8 cores; these tiers continue with 4 GiB per core, like AWS's m5 hosts.
CPU = {
    f"cpu.{cores // 8}xlarge": Host(cpu=cores, memory_gib=4 * cores, source=f"{AWS}/m5/") for cores in (16, 32, 64, 96)
}

UNREGISTERED = {"mi350x": _host(MI350X, 192, 3072, 8 * 400, f"{AMD}/mi350/mi350x.html")}

REGISTERED = CPU | WHOLE | PARTS | GOOGLE
HOSTS = REGISTERED | AMAZON | UNREGISTERED


@dataclass(frozen=True)
class Cluster:
    """Hosts of one kind.

    Attributes:
        name: Name of the kind of host; None for this machine.
        nodes: Number of hosts.
        per_host: Ranks per host.
        on_gpu: Whether each rank has a GPU.
    """

    name: str | None
    nodes: int
    per_host: int
    on_gpu: bool

    def __str__(self) -> str:
        """The cluster as `--on` takes it."""
        host = self.host
        if not host:
            return "this machine"
        return f"{self.name}:{self.nodes}" + (f"x{self.per_host}" if self.per_host != usual_ranks(host) else "")

    @property
    def host(self) -> Host | None:
        """The host's figures; None for this machine."""
        return HOSTS[self.name] if self.name else None

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.nodes * self.per_host

    @property
    def device_type(self) -> str:
        """The device of a rank."""
        return "cuda" if self.on_gpu else "cpu"

    @property
    def shape(self) -> str:
        """The ranks as `-j` takes them."""
        return f"{self.nodes}x{self.per_host}"


def usual_ranks(host: Host) -> int:
    """Returns the usual ranks of a host: one per GPU, at least one."""
    return max(1, host.gpus)
