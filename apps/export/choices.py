"""The choices of an export: which of them go together, and what tells one export from another."""

import hashlib
import json
from dataclasses import asdict, dataclass

from apps.export.compiled import check_compiler
from apps.export.forms import Format, Quantization
from apps.export.onnx_program import check_onnx
from trainer.checkpoint.store import MANIFEST, Checkpoint
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.core.storage import read_text


@dataclass(frozen=True)
class Choices:
    """The flags of the same names."""

    split: str
    averages: bool
    quantize: Quantization
    compile: bool
    format: Format
    shard_bytes: int | None

    def check(self) -> None:
        """Refuses choices that do not go together, or need what is not installed.

        Raises:
            InputError: They are such.
        """
        if self.compile and self.format == "onnx":
            raise InputError("--compile is True, which compiles model.pt2, but --format is onnx; leave one of them out")
        if self.shard_bytes and (self.compile or self.quantize != "none" or self.format == "onnx"):
            flags = {"--compile": self.compile, "--quantize": self.quantize, "--format": self.format}
            flag = next(flag for flag, value in flags.items() if value not in (False, "none", "torch"))
            raise InputError(f"--shard-bytes is {self.shard_bytes}, and {flag} is {flags[flag]}; leave one of them out")
        if self.format == "onnx":
            check_onnx()
        if self.compile:
            check_compiler()

    def fingerprint(self, config: Config, checkpoint: Checkpoint) -> str:
        """Returns what changes with the checkpoint, the configuration and the choices, so with what is exported."""
        made_of = [read_text(f"{checkpoint.url}/{MANIFEST}"), config.model_dump(mode="json"), asdict(self)]
        return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
