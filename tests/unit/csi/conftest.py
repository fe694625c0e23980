"""A node with a running CSI driver, for the tests of this folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.csi.answers import Answers, running
from unit.csi.kubelet import Node


@pytest.fixture
def answers() -> Iterator[Answers]:
    with running() as made:
        yield made


@pytest.fixture
def host(answers: Answers) -> Iterator[Node]:
    """A node without a driver. Its folder's name is short: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="csi-") as folder:
        node = Node(Path(folder), answers.kubeconfig(Path(folder)))
        try:
            node.start_host()
            yield node
        finally:
            node.close()


@pytest.fixture
def node(host: Node) -> Node:
    host.start_driver()
    return host
