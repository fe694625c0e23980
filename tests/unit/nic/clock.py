"""A clock that only sleeping moves, and a node without sessions; for the tests beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class StepClock:
    def __init__(self) -> None:
        self.time_s = 1000.0

    def now(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds


@asynccontextmanager
async def alone() -> AsyncIterator[bool]:
    yield True
