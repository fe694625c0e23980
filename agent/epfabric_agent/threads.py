"""Threads for the core's blocking calls, so that no pod holds up the end of another one's session.

Used by session and groups. The loop's own executor is for everything else (API server, discovery).
`named` says what the agent's end waits for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

SAY_S = 1.0
_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

# As slow as pods and peers make them: opening, registering, draining, connecting.
_SERVING = ThreadPoolExecutor(16, thread_name_prefix="serving")
# Bounded by the core alone: failing, closing, letting go.
_ENDING = ThreadPoolExecutor(16, thread_name_prefix="ending")


async def in_time(bound_s: float, otherwise: T, call: Callable[[], T]) -> T:
    """`call` in the loop's executor; `otherwise` where it takes longer, and it runs on unheard."""
    running = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.wait_for(asyncio.shield(running), bound_s)
    except TimeoutError:
        return otherwise


async def named(what: str, end: Awaitable[None], say_s: float = SAY_S) -> None:
    """Waits for `end`; the log says so where that takes longer than `say_s`."""
    running = asyncio.ensure_future(end)
    done, _ = await asyncio.wait([running], timeout=say_s)
    if not done:
        _log.warning("the agent's end waits for %s", what)
    await running


async def serving(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `call` where it may take as long as a pod likes."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_SERVING, lambda: call(*args, **kwargs))


async def ending(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `call` where only ends are waited for."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_ENDING, lambda: call(*args, **kwargs))
