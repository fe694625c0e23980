"""A node with a running CSI driver, for the tests of this folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.csi.kubelet import NOWHERE, Node


@pytest.fixture
def host() -> Iterator[Node]:
    """A node without a driver. Its folder's name is short: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="csi-") as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        kubeconfig.write_text(NOWHERE)
        node = Node(Path(folder), kubeconfig)
        try:
            node.start_host()
            yield node
        finally:
            node.close()


@pytest.fixture
def node(host: Node) -> Node:
    host.start_driver()
    return host
