"""The forms that an export can have."""

from typing import Literal

Format = Literal["torch", "onnx"]
Quantization = Literal["none", "int8", "int4"]
