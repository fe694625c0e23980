"""The built images, unpacked once for all tests of this tier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from harness import images
from harness.images.container import Unpacked, unpacked
from harness.images.store import Image
from harness.process import Processes, private_mounts


@pytest.fixture(scope="session")
def built() -> dict[str, Image]:
    return images.images()


@pytest.fixture(scope="session")
def roots(built: dict[str, Image]) -> Iterator[dict[str, Unpacked]]:
    private_mounts()  # so that none outlives this process
    with ExitStack() as stack:
        yield {target: stack.enter_context(unpacked(image)) for target, image in built.items()}


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes("epfabric-images-") as started:
        yield started
