"""Builds the native programs once, outside the bounds of the tests that run them."""

from __future__ import annotations

import pytest
from epfabric_bench import native


@pytest.fixture(scope="session")
def programs() -> None:
    native.build(print)
