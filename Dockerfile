# Images of v4serve. Builds can copy only the files that .dockerignore lists as exceptions.
#
#   docker build --target router -t v4serve-router .    router, operator and the commands that do not need torch
#   docker build --target worker -t v4serve-worker .    all of v4serve, with torch and the demo model
#
#   PYTHON_IMAGE, CUDA_IMAGE  base images; CUDA_IMAGE needs apt, and its CUDA version only has to suit the driver
#   TORCH_INDEX               package index for torch only; the default is PyPI, whose build includes CUDA
#
# Containers can run as any user id, with a read-only root file system and a writable /tmp.

ARG PYTHON_IMAGE=python:3.12-slim-bookworm
ARG CUDA_IMAGE=nvidia/cuda:13.0.1-base-ubuntu24.04

FROM ${PYTHON_IMAGE} AS router-packages
COPY . /source
RUN python3 -m venv --without-pip /opt/v4serve
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m pip --python /opt/v4serve install -c /source/constraints.txt "/source[router,operator,tracing]"

FROM ${PYTHON_IMAGE} AS router
COPY --from=router-packages /opt/v4serve /opt/v4serve
# HOME and LOGNAME replace the entry in /etc/passwd, so that the container can run as any user id.
ENV PATH=/opt/v4serve/bin:$PATH HOME=/tmp LOGNAME=v4serve
LABEL org.opencontainers.image.title="v4serve router" \
      org.opencontainers.image.description="Router, operator and command line of v4serve" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 65532:65532
ENTRYPOINT ["v4serve"]

FROM ${CUDA_IMAGE} AS cuda-python
RUN apt-get update && apt-get install --yes --no-install-recommends python3 && rm -rf /var/lib/apt/lists/*

FROM cuda-python AS worker-packages
RUN apt-get update && apt-get install --yes --no-install-recommends python3-pip python3-venv
RUN python3 -m venv --without-pip /opt/v4serve
ARG TORCH_INDEX=
COPY constraints.txt /
# torch is installed in a layer of its own, so that changes of the project do not download gigabytes again.
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m pip --python /opt/v4serve install -c /constraints.txt \
        ${TORCH_INDEX:+--no-deps --index-url "${TORCH_INDEX}"} torch
COPY . /source
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m pip --python /opt/v4serve install -c /source/constraints.txt "/source[local,fetch,tracing]"
# A short run compiles the CPU operators. On a processor of another type, they are compiled at start-up instead.
RUN NUMBA_CACHE_DIR=/opt/v4serve-compiled HOME=/tmp \
    /opt/v4serve/bin/v4serve generate --prompt "It was" --max-tokens 400 --temperature 0

FROM cuda-python AS worker
COPY --from=worker-packages /opt/v4serve /opt/v4serve
COPY --from=worker-packages /opt/v4serve-compiled /opt/v4serve-compiled
ENV PATH=/opt/v4serve/bin:$PATH HOME=/tmp LOGNAME=v4serve
ENV V4SERVE_COMPILED=/opt/v4serve-compiled NUMBA_CACHE_DIR=/tmp/v4serve-compiled
LABEL org.opencontainers.image.title="v4serve worker" \
      org.opencontainers.image.description="Prefill and decode workers of v4serve, with its demo model" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 65532:65532
ENTRYPOINT ["v4serve"]
