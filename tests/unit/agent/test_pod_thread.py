"""The thread of one pod keeps nothing of a call that has failed."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from epfabric_agent.session.pod_thread import PodThread

WAIT_S = 60.0


class Held:
    def refuse(self) -> None:
        raise ValueError("bad")


async def test_what_a_failed_call_was_made_on_goes_without_the_collector() -> None:
    thread, held = PodThread(), Held()
    seen = weakref.ref(held)
    gc.disable()
    try:
        with pytest.raises(ValueError, match="bad"):
            await thread.run(held.refuse)
        del held
        async with asyncio.timeout(WAIT_S):
            while seen() is not None:  # the thread may be about to let go
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
