"""Fixtures of the library's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .scripted_agent import ScriptedAgent


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ScriptedAgent]:
    """An agent that serves one session of two ranks: 2 rings of 16 slots, 4 signal words."""
    with ScriptedAgent(tmp_path) as served:
        yield served
