"""How ranks of this node end: told of a failed epoch, closed in the core; for groups.part."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from epfabric import messages

from epfabric_agent.groups.epoch import LocalEpoch
from epfabric_agent.groups.local_rank import LocalRank, Stage

ABORT_WORDS_S = 0.2
_log = logging.getLogger(__name__)


async def end_failed(epoch: LocalEpoch, reason: str, observe: Callable[[], None]) -> None:
    """Fails the epoch in the core and tells every rank why.

    The abort words are set first; that their proxies stand still may take longer, and the pods
    need not wait for it.
    """
    stopped = epoch.fail(reason)
    await asyncio.wait([stopped], timeout=ABORT_WORDS_S)
    for local in epoch.ranks.values():
        local.failure = reason[: messages.MAX_TEXT]
        refusal = messages.ErrorReply(code="group-failed", message=local.failure)
        if local.stage is Stage.JOINING:
            local.settle(refusal)
        local.on_failed(epoch.number, local.failure)
        local.let_go()
    await stopped
    await asyncio.to_thread(observe)


async def drop(local: LocalRank) -> None:
    """Closes the rank's session in the core, then gives back what it held."""
    from epfabric_agent._native import NativeError

    if local.opening is not None:
        await asyncio.wait([local.opening])  # the core's thread cannot be cut off
    native, local.native = local.native, None
    if native is not None:
        try:
            await asyncio.to_thread(native.close)
        except NativeError as error:
            _log.error("rank %d of %s did not close cleanly: %s", local.rank, local.pod, error)
    local.release()
