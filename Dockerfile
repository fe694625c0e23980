# EPFabric's images: targets operator, agent, csi (the CSI driver) and client (a base for pods).
# BASE is a Debian 13 image. `make images` builds without a daemon, from a base made of packages, and mounts
# what the building machine has set for package sources at /mnt: nothing of that stays in an image.
ARG BASE=debian:trixie-slim

FROM ${BASE} AS python
RUN if [ -f /mnt/env ]; then . /mnt/env; fi; set -e; \
    if ! [ -x /usr/bin/python3 ]; then \
      apt-get update; DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates python3; \
      rm -rf /var/lib/apt/lists/* /var/log/* /var/cache/ldconfig/aux-cache; \
    fi

# Compilers and package tools: no image below copies more of these stages than /opt/epfabric.
FROM python AS tools
RUN if [ -f /mnt/env ]; then . /mnt/env; fi; set -e; apt-get update; \
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      ccache cmake g++ libfabric-dev ninja-build pkg-config python3-dev python3-venv
ARG UV_VERSION=0.13.9
WORKDIR /src
COPY images/prepare.py images/prepare.py
COPY crds/pyproject.toml crds/pyproject.toml
COPY operator/pyproject.toml operator/pyproject.toml
COPY agent/pyproject.toml agent/pyproject.toml
COPY kernels/pyproject.toml kernels/pyproject.toml
COPY kernels/host/pyproject.toml kernels/host/pyproject.toml
ENV UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/usr/bin/python3 UV_PROJECT_ENVIRONMENT=/opt/epfabric \
    CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_BUILD_PARALLEL_LEVEL=2
RUN if [ -f /mnt/env ]; then . /mnt/env; fi; set -e; \
    python3 -m venv /opt/tools; \
    /opt/tools/bin/pip install uv==${UV_VERSION} $(python3 images/prepare.py build-requirements)

# A wheel of each part, built with the tools above and nothing fetched.
FROM tools AS wheel-crds
COPY crds crds
RUN if [ -f /mnt/env ]; then . /mnt/env; fi; PATH=/opt/tools/bin:$PATH; \
    pip wheel --no-build-isolation --no-deps --no-index -w /wheels ./crds

FROM tools AS wheel-operator
COPY operator operator
RUN if [ -f /mnt/env ]; then . /mnt/env; fi; PATH=/opt/tools/bin:$PATH; \
    pip wheel --no-build-isolation --no-deps --no-index -w /wheels ./operator

FROM tools AS wheel-epfabric
COPY kernels/epfabric kernels/epfabric
RUN if [ -f /mnt/env ]; then . /mnt/env; fi; PATH=/opt/tools/bin:$PATH; \
    pip wheel --no-build-isolation --no-deps --no-index -w /wheels ./kernels

FROM tools AS wheel-agent
COPY kernels/epfabric/include kernels/epfabric/include
COPY agent agent
RUN if [ -f /mnt/env ]; then . /mnt/env; fi; PATH=/opt/tools/bin:$PATH; \
    pip wheel --no-build-isolation --no-deps --no-index -w /wheels ./agent

FROM tools AS wheel-host
COPY kernels/epfabric/include kernels/epfabric/include
COPY kernels/host kernels/host
RUN if [ -f /mnt/env ]; then . /mnt/env; fi; PATH=/opt/tools/bin:$PATH; \
    pip wheel --no-build-isolation --no-deps --no-index -w /wheels ./kernels/host

# What each image runs from: the locked packages of others, then ours.
FROM tools AS locked
COPY pyproject.toml uv.lock ./

FROM locked AS build-operator
RUN if [ -f /mnt/env ]; then . /mnt/env; fi; \
    /opt/tools/bin/uv sync --frozen --no-dev --no-install-workspace --package epfabric-operator
COPY --from=wheel-crds /wheels /wheels
COPY --from=wheel-operator /wheels /wheels
RUN /opt/tools/bin/uv pip install --python /opt/epfabric --no-cache --offline --no-deps /wheels/*.whl \
    && python3 images/prepare.py finish /opt/epfabric

FROM locked AS build-agent
RUN if [ -f /mnt/env ]; then . /mnt/env; fi; \
    /opt/tools/bin/uv sync --frozen --no-dev --no-install-workspace --package epfabric-agent
COPY --from=wheel-crds /wheels /wheels
COPY --from=wheel-epfabric /wheels /wheels
COPY --from=wheel-agent /wheels /wheels
RUN /opt/tools/bin/uv pip install --python /opt/epfabric --no-cache --offline --no-deps /wheels/*.whl \
    && rm /opt/epfabric/bin/epfabric-csi && python3 images/prepare.py finish /opt/epfabric

# The driver is a few modules of the agent's distribution, without core, kubernetes client and numpy.
FROM locked AS build-csi
RUN if [ -f /mnt/env ]; then . /mnt/env; fi; \
    /opt/tools/bin/uv sync --frozen --only-group csi --package epfabric-agent
COPY agent/epfabric_agent agent/epfabric_agent
RUN python3 images/prepare.py csi agent /opt/epfabric && python3 images/prepare.py finish /opt/epfabric

FROM locked AS build-client
RUN if [ -f /mnt/env ]; then . /mnt/env; fi; \
    /opt/tools/bin/uv sync --frozen --no-dev --no-install-workspace --package epfabric --extra host
COPY --from=wheel-epfabric /wheels /wheels
COPY --from=wheel-host /wheels /wheels
RUN /opt/tools/bin/uv pip install --python /opt/epfabric --no-cache --offline --no-deps /wheels/*.whl \
    && python3 images/prepare.py finish /opt/epfabric
COPY examples /opt/epfabric/examples

FROM python AS operator
COPY --from=build-operator /opt/epfabric /opt/epfabric
ENV PATH=/opt/epfabric/bin:$PATH
USER 65532:65532
ENTRYPOINT ["epfabric-operator"]

# pyverbs must be of the same version as rdma-core, so both come from Debian.
FROM python AS agent
RUN if [ -f /mnt/env ]; then . /mnt/env; fi; set -e; apt-get update; \
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      ibverbs-providers libfabric1 libibverbs1 python3-pyverbs; \
    rm -rf /var/lib/apt/lists/* /var/log/* /var/lib/dpkg/*-old /var/cache/debconf/*-old /var/cache/ldconfig/aux-cache; \
    find /usr/lib/python3/dist-packages -name __pycache__ -prune -exec rm -r {} +; \
    PYTHONHASHSEED=0 python3 -m compileall -q --invalidation-mode unchecked-hash /usr/lib/python3/dist-packages
COPY --from=build-agent /opt/epfabric /opt/epfabric
ENV PATH=/opt/epfabric/bin:$PATH
ENTRYPOINT ["epfabric-agent"]

FROM python AS csi
COPY --from=build-csi /opt/epfabric /opt/epfabric
ENV PATH=/opt/epfabric/bin:$PATH
ENTRYPOINT ["epfabric-csi"]

FROM python AS client
COPY --from=build-client /opt/epfabric /opt/epfabric
ENV PATH=/opt/epfabric/bin:$PATH
USER 65532:65532
