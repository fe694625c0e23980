"""Pytest fixtures that several tiers share: a session's control plane, Prometheus and Jaeger."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.cluster import Cluster
from harness.jaeger import Jaeger
from harness.process import Processes, private_mounts
from harness.prometheus import Prometheus


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The control plane of this test session: tests keep to namespaces and names of their own."""
    private_mounts()
    with Processes() as processes:
        running = Cluster(processes)
        running.start()
        yield running


@pytest.fixture(scope="session")
def prometheus() -> Iterator[Prometheus]:
    with Processes("epfabric-prometheus-") as processes:
        server = Prometheus(processes)
        server.start()
        yield server


@pytest.fixture(scope="session")
def jaeger() -> Iterator[Jaeger]:
    with Processes("epfabric-jaeger-") as processes:
        server = Jaeger(processes)
        server.start()
        yield server
