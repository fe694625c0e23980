# EPFabric's images: `--target operator`, `--target agent` (agent and CSI driver), `--target client` (base for pods).
# BASE is a Debian 13 image; where no registry can be reached, one made from packages does.
ARG BASE=debian:trixie-slim

FROM ${BASE} AS python
ARG DEBIAN_FRONTEND=noninteractive
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

# Everything is installed into one folder, which the images then copy: no compiler reaches them.
FROM python AS build
ARG DEBIAN_FRONTEND=noninteractive
RUN apt-get update && apt-get install -y --no-install-recommends g++ libfabric-dev pkg-config python3-dev \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir uv==0.13.9
WORKDIR /src
COPY pyproject.toml uv.lock ./
COPY crds crds
COPY operator operator
COPY agent agent
COPY kernels kernels
ENV UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/usr/bin/python3

FROM build AS build-operator
RUN UV_PROJECT_ENVIRONMENT=/opt/epfabric \
    /opt/uv/bin/uv sync --frozen --no-dev --no-editable --package epfabric-operator

FROM build AS build-agent
RUN UV_PROJECT_ENVIRONMENT=/opt/epfabric \
    /opt/uv/bin/uv sync --frozen --no-dev --no-editable --package epfabric-agent

FROM build AS build-client
RUN UV_PROJECT_ENVIRONMENT=/opt/epfabric \
    /opt/uv/bin/uv sync --frozen --no-dev --no-editable --package epfabric --extra host

FROM python AS operator
COPY --from=build-operator /opt/epfabric /opt/epfabric
ENV PATH=/opt/epfabric/bin:$PATH
USER 65532:65532
ENTRYPOINT ["epfabric-operator"]

FROM python AS agent
ARG DEBIAN_FRONTEND=noninteractive
RUN apt-get update && apt-get install -y --no-install-recommends \
    ibverbs-providers libfabric1 libibverbs1 python3-pyverbs \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-agent /opt/epfabric /opt/epfabric
ENV PATH=/opt/epfabric/bin:$PATH
ENTRYPOINT ["epfabric-agent"]

FROM python AS client
COPY --from=build-client /opt/epfabric /opt/epfabric
COPY examples /opt/epfabric/examples
ENV PATH=/opt/epfabric/bin:$PATH
USER 65532:65532
