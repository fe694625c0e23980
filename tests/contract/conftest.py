"""Fixtures of the contract tests: the CRDs on the shared cluster, a stand, a running operator."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

import pytest
from contract.stand import NAMESPACE, Stand
from epfabric_crds.names import AGENT_ACCOUNT
from harness.cluster import Cluster
from harness.process import Process


@pytest.fixture(scope="session")
def api(cluster: Cluster) -> Cluster:
    """The shared cluster, with the CRDs."""
    definitions = str(files("epfabric_crds") / "definitions")
    # No owner is taken from a chart that has installed them before.
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", definitions)
    for plural in ("epfabrics", "epfabricnodes", "epgroups"):
        crd = f"crd/{plural}.epfabric.io"
        cluster.kubectl("wait", "--for=condition=Established", crd, "--timeout=60s")
    return cluster


@pytest.fixture(scope="module")
def stand(api: Cluster) -> Iterator[Stand]:
    if not api.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found"):
        api.kubectl("create", "namespace", NAMESPACE)
        api.kubectl("create", "serviceaccount", AGENT_ACCOUNT, "-n", NAMESPACE)
        api.kubectl("create", "serviceaccount", "stranger", "-n", NAMESPACE)
    made = Stand(api)
    yield made
    made.close()


@pytest.fixture(scope="module")
def operator(stand: Stand) -> Iterator[Process]:
    with stand.operator() as process:
        yield process
