"""Two real nodes with the chart and a fabric for all tests of this folder; each leaves no pod."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import images
from harness.node.site import Site
from harness.process import Processes, private_mounts

from .fabric import LABEL, Fabric


@pytest.fixture(scope="package")
def installed() -> Iterator[Fabric]:
    """The fabric, Ready."""
    private_mounts()
    with Processes("epfabric-node-") as processes:
        site = Site(processes, labels={LABEL: "true"})
        site.start(list(images.archives().values()))
        fabric = Fabric(site)
        fabric.install()
        yield fabric


@pytest.fixture
def fabric(installed: Fabric) -> Iterator[Fabric]:
    """The fabric, and after the test: no pod stays Terminating, no volume stays on a node."""
    yield installed
    left = installed.clear()
    assert left == [], "pods were deleted, and this stayed"
