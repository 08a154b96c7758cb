"""A function of tensors as machine code for CPUs, in a file that later starts load in milliseconds.

torch.compile has a cache of its own, with which a start still takes 3 s of processor time: it imports the compiler and
goes through the whole function again. A file of AOTInductor needs the trace alone, 0.5 s, to know that it is the right
one, and its calls, which check nothing in Python, take a fifth less.
"""

import hashlib
import json
import os
import platform
import uuid
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from trainer.config.root import Config
from trainer.core.storage import digest

LEAST_SIZE = 2
"""The smallest batch of a graph: in a batch of 1 torch takes a size for one that is stretched to another."""
KEPT = 64
"""Files of machine code in the cache, 0.2 to 2 MB each; the ones that were not used for longest are deleted."""
COMPILE_SECONDS, TRACE_SECONDS = 30.0, 2.0
"""What compiling takes on two cores where nothing better is known, and with the machine code at hand."""


class Trace:
    """The operations of a function, for batches of `LEAST_SIZE` and more.

    Args:
        function: Takes tensors and returns a list of tensors. It may not read values, nor tensors that it is not given.
        fixed: Its first inputs, which have these sizes in every call. None of their values is read.
        of_batch: Its other inputs, for one batch.
        batch_size: The size of that batch, and of the first dimension of all inputs that grow with it.

    Raises:
        Exception: The function does what a graph cannot hold, of whatever type torch or the function raises.
    """

    def __init__(
        self,
        function: Callable[..., list[Tensor]],
        fixed: Sequence[Tensor],
        of_batch: Sequence[Tensor],
        batch_size: int,
    ) -> None:
        # Not by make_fx's own fake tensors: two equal sizes, such as a batch and a layer of 64, would count as one.
        mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False))
        self._inputs = (*fixed, *of_batch)
        self._grows = [False] * len(fixed) + [value.dim() > 0 and len(value) == batch_size for value in of_batch]
        fake = [
            mode.from_tensor(value.detach(), symbolic_context=_sizes(value, grows))
            for value, grows in zip(self._inputs, self._grows, strict=True)
        ]
        # Python's dispatcher knows operations of sizes without values that C++ has not, such as dropout.
        with enable_python_dispatcher(), mode, torch.no_grad():
            self._module = make_fx(function)(*fake)

    def key(self) -> str:
        """Returns a digest of all that decides the machine code."""
        found = hashlib.sha256(self._module.code.encode())
        for node in self._module.graph.find_nodes(op="placeholder"):
            value = node.meta["val"]
            found.update(repr((value.dtype, [str(size) for size in value.shape], value.stride())).encode())
        for name, value in self._module.named_buffers():
            found.update(name.encode() + value.numpy().tobytes())
        found.update(repr((torch.__version__, torch.get_num_threads(), _processor())).encode())
        return found.hexdigest()[:32]

    def compile(self) -> Path:
        """Compiles the function and returns the file with its machine code, in torch's cache.

        Raises:
            Exception: There is no compiler or no room, or torch cannot compile it.
        """
        import torch._inductor  # a second to import

        dynamic = tuple({0: torch.export.Dim.DYNAMIC} if grows else None for grows in self._grows)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch about itself
            program = torch.export.export(_Module(self._module), self._inputs, dynamic_shapes=(dynamic,))
            return Path(str(torch._inductor.aot_compile(program.module(), self._inputs)))


class _Module(torch.nn.Module):
    def __init__(self, module: GraphModule) -> None:
        super().__init__()
        self._module = module

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        return self._module(*inputs)


def _sizes(value: Tensor, grows: bool) -> StatelessSymbolicContext:
    first = DimDynamic.DYNAMIC if grows else DimDynamic.STATIC
    return StatelessSymbolicContext(dynamic_sizes=[first, *[DimDynamic.STATIC] * (value.dim() - 1)][: value.dim()])


def _processor() -> str:
    """Returns what instructions this processor has: the compiler uses all."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    return platform.machine()


def folder() -> Path:
    """Returns the directory of kept machine code."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "torchx-recsys", "compiled")


def kept(key: str) -> Path | None:
    """Returns the file with the machine code of a key; None if there is none."""
    path = folder() / f"{key}.so"
    return path if os.access(path, os.R_OK) else None


def keep(path: Path, key: str) -> Path:
    """Copies machine code to the directory of kept code, and returns its place there.

    Raises:
        OSError: It cannot be written there.
    """
    kept = folder() / f"{key}.so"
    kept.parent.mkdir(parents=True, exist_ok=True)
    _write(kept, path.read_bytes())
    for old in sorted(kept.parent.glob("*.so"), key=lambda file: file.stat().st_mtime)[:-KEPT]:
        old.unlink(missing_ok=True)
    return kept


def load(path: Path) -> Callable[[list[Tensor]], list[Tensor]]:
    """Loads machine code.

    Raises:
        RuntimeError: It cannot be loaded.
    """
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1)
    with suppress(OSError):
        os.utime(path)  # or it may be deleted as one that was not used for long
    return runner.run


class Costs:
    """What the dense part of a configuration costs to compile, as far as this host has compiled it before.

    Args:
        config: The configuration.

    Attributes:
        file: Where it is noted.
    """

    def __init__(self, config: Config) -> None:
        data = config.data.model_dump(mode="json", include={"dense", "sparse", "labels", "classes"})
        model = config.model_dump(mode="json", include={"model", "tasks"})
        self.file = folder() / f"{digest([data, model, config.train.precision])}.json"

    def seconds(self) -> float:
        """Returns the expected time to compile or load the dense part."""
        try:
            found = json.loads(self.file.read_text())
            return TRACE_SECONDS if kept(found["key"]) else found["seconds"]
        except (OSError, ValueError, KeyError):  # a file of this size is written once and is no promise
            return COMPILE_SECONDS

    def note(self, path: Path, seconds: float) -> None:
        """Notes what it has cost.

        Raises:
            OSError: The file cannot be written.
        """
        _write(self.file, json.dumps({"key": path.stem, "seconds": round(seconds, 1)}).encode())


def _write(path: Path, content: bytes) -> None:
    """Writes a file under another name, and renames it once it is whole and on the disk."""
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
