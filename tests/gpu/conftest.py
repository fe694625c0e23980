"""The GPU and the kernels under test, once for the folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gpu.mps import Mps, NoMps
from harness.device import Gpu, Words

# Ranks that share a process wait for each other: no two of their streams may share a queue.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    return Gpu(Path(__file__).with_name("exchange.cu"))


@pytest.fixture
def failed(gpu: Gpu) -> Iterator[Words]:
    words = Words(1, np.uint32)
    yield words
    words.close()


@pytest.fixture
def wrong(gpu: Gpu) -> Iterator[Words]:
    words = Words(1, np.uint64)
    yield words
    words.close()


@pytest.fixture(scope="session")
def mps() -> Iterator[Mps]:
    with tempfile.TemporaryDirectory(prefix="epfabric-mps-") as folder:
        try:
            daemon = Mps(Path(folder))
        except NoMps as why:
            pytest.skip(f"no CUDA MPS: {why}")
        yield daemon
        daemon.close()
