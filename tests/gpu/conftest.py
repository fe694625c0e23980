"""The GPU and the kernels under test, once for the folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from harness.device import Gpu, Words


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
