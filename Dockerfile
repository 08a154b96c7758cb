# The trainer's image, for Kubernetes and for container runtimes on Slurm.
#
#   docker build -t registry/trainer:1 .
#   docker build -t registry/trainer:1 --build-arg BASE=cuda --build-arg EXTRAS=s3 .
#
# BASE is `cpu`, `cuda`, or an image with Python and the matching triple of torch, torchrec and fbgemm-gpu.
# EXTRAS are extras of the project: s3, gcs, azure, kafka, redis, serve, safetensors, onnx, faiss, spark (for sc://; the image has no Java).
# PIP_EXTRA_INDEX_URL is a package index that has torch's CPU builds, where the default one has not; else `cpu` has the build for
# CUDA, with its libraries. A builder that takes the name of a stage for that of an image wants `--build-arg BASE=cpu`.
ARG BASE=cpu

FROM python:3.11-slim-bookworm AS python
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

FROM python AS cpu
COPY requirements-cpu.txt ./
# The first of its two parts. Tests need the other, and extras, which EXTRAS names.
RUN sed "/make extras/,\$d" requirements-cpu.txt > locked.txt \
    && pip install --quiet --no-deps -r locked.txt \
    && { python -c "import torch" 2> /dev/null || pip install --quiet -c locked.txt torch; } \
    && rm locked.txt requirements-cpu.txt

FROM python AS cuda
RUN pip install --quiet torch==2.13.0 torchrec==1.8.0 fbgemm-gpu==1.8.0

FROM ${BASE}
ARG EXTRAS
LABEL org.opencontainers.image.title="torchx-recsys" \
      org.opencontainers.image.description="The trainer of torchx-recsys, with torch, torchrec and fbgemm-gpu" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="BSD-3-Clause" \
      org.opencontainers.image.base.name="python:3.11-slim-bookworm"
COPY pyproject.toml README.md LICENSE /src/
COPY components /src/components
COPY schedulers /src/schedulers
COPY torchx_recsys /src/torchx_recsys
COPY trainer /src/trainer
RUN pip install --quiet "/src${EXTRAS:+[$EXTRAS]}" \
    && python -c "import torch, torchrec, fbgemm_gpu" \
    && rm -r /src && install -d -o 1000 -g 1000 /work
WORKDIR /work
USER 1000:1000
# A user without a name in the image still has one, and a home to write to.
ENV USER=trainer HOME=/work
CMD ["python", "-m", "trainer", "--help"]
