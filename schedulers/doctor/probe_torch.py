"""Loads torch, fbgemm-gpu and torchrec, and prints the version of CUDA and the GPUs that torch sees, as JSON."""

import json
import warnings

warnings.simplefilter("ignore")

import fbgemm_gpu  # noqa: E402, F401
import torch  # noqa: E402
import torchrec.distributed  # noqa: E402, F401

names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
print(json.dumps({"cuda": torch.version.cuda, "gpus": names}))
