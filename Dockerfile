# EPFabric's images: targets operator, agent, csi (the CSI driver) and client (a base for pods).
# BASE is a Debian 13 image. `make images` builds without a daemon, from a base made of packages, and mounts
# what the building machine has set for package sources at /mnt: nothing of that stays in an image.
ARG BASE=debian:trixie-slim

FROM ${BASE} AS python
RUN if [ -f /mnt/env ]; then . /mnt/env; fi; set -e; \
    if ! [ -x /usr/bin/python3 ]; then \
      apt-get update; DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates python3; \
      rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /var/cache/ldconfig/aux-cache; \
    fi

# Compilers and package tools: no image below copies more of these stages than /opt/epfabric.
FROM python AS tools
ARG UV_VERSION=0.13.9
ENV UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_PYTHON=/usr/bin/python3 UV_PROJECT_ENVIRONMENT=/opt/epfabric \
    CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_BUILD_PARALLEL_LEVEL=2
RUN if [ -f /mnt/env ]; then . /mnt/env; fi; set -e; apt-get update; \
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -o Dpkg::Options::=--force-unsafe-io \
      ccache cmake g++ libfabric-dev libibverbs-dev ninja-build pkg-config python3-dev python3-venv; \
    python3 -m venv /opt/tools; /opt/tools/bin/pip install uv==${UV_VERSION}
WORKDIR /src
COPY . .

# AGAIN=1 builds everything once more, for a comparison.
FROM tools AS build-operator
ARG AGAIN
RUN images/build.sh "crds operator" --no-dev --package epfabric-operator

FROM tools AS build-agent
ARG AGAIN
RUN images/build.sh "crds kernels agent" --no-dev --package epfabric-agent && rm /opt/epfabric/bin/epfabric-csi

# The driver is a few modules of the agent's distribution, without core, Kubernetes client and numpy.
FROM tools AS build-csi
ARG AGAIN
RUN images/build.sh "" --only-group csi --package epfabric-agent

FROM tools AS build-client
ARG AGAIN
RUN images/build.sh "kernels kernels/host" --no-dev --package epfabric --extra host && cp -r examples /opt/epfabric/

FROM python AS operator
COPY --from=build-operator /opt/epfabric /opt/epfabric
ENV PATH=/opt/epfabric/bin:$PATH
USER 65532:65532
ENTRYPOINT ["epfabric-operator"]

# pyverbs must be of the same version as rdma-core, so both come from Debian.
FROM python AS agent
RUN if [ -f /mnt/env ]; then . /mnt/env; fi; set -e; export SOURCE_DATE_EPOCH=0; apt-get update; \
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      -o Dpkg::Options::=--force-unsafe-io -o Dpkg::Options::=--path-exclude=/usr/lib/udev/hwdb.d/* \
      ibverbs-providers libfabric1 libibverbs1 python3-pyverbs systemd-standalone-sysusers; \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* /var/lib/dpkg/*-old /var/cache/debconf/*-old \
      /var/cache/ldconfig/aux-cache /etc/machine-id /var/lib/dbus/machine-id; \
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
