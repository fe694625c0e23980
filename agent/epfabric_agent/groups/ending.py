"""How ranks of this node end: told of a failed epoch, closed in the core; for groups.part."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from epfabric import messages

from epfabric_agent.groups.epoch import LocalEpoch
from epfabric_agent.groups.local_rank import LocalRank, Stage, said
from epfabric_agent.threads import ending, serving

if TYPE_CHECKING:
    from epfabric_agent._native import Session

ABORT_WORDS_S = 0.2
DRAIN_LOOK_S = 0.02
OPENED_S = 60.0  # each proxy has 10 s in the core
CLOSED_S = 9.0  # two tries of 5 s in the core
_log = logging.getLogger(__name__)


async def end_failed(epoch: LocalEpoch, reason: str, observe: Callable[[], None]) -> None:
    """Fails the epoch in the core and tells every rank why.

    The abort words are set first; that their proxies stand still may take longer, and the pods
    need not wait for it.
    """
    stopped = epoch.fail(reason)
    await asyncio.wait([stopped], timeout=ABORT_WORDS_S)
    for local in epoch.ranks.values():
        if local.stage is Stage.MASKED:  # was told why
            local.let_go()
            continue
        local.failure = said(reason)
        refusal = messages.ErrorReply(code="group-failed", message=local.failure)
        if local.stage is Stage.JOINING:
            local.settle(refusal)
        local.on_failed(epoch.number, local.failure)
        local.let_go()
    await stopped
    await observe_end(observe)


async def observe_end(observe: Callable[[], None]) -> None:
    """The last look at an epoch's figures, whose failure keeps nothing from ending."""
    try:
        await ending(observe)
    except Exception:
        _log.exception("the last figures of an epoch were not taken")


async def drained(local: LocalRank, limit_s: float) -> bool:
    """Whether nothing of the rank is outstanding in that time; holds a thread only to look.

    Not waited for any more once the rank has failed: its proxies may be gone by then.
    """
    from epfabric_agent._native import NativeError

    session = local.session
    loop = asyncio.get_running_loop()
    end, pause_s = loop.time() + limit_s, 0.001
    while not local.failure and loop.time() <= end:
        try:
            if await serving(session.drain, 0):
                return True
        except NativeError:
            if not local.failure:
                raise
            break
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, DRAIN_LOOK_S)
    return False


async def drop(local: LocalRank, give_up: Callable[[str], None]) -> None:
    """Closes the rank's session in the core, then gives back what it held. What still serves the
    barriers of a masked rank's node is given back when the epoch has ended.

    What does not end in time can neither be waited for nor be left, as it uses the pods' memory
    and a CPU: `give_up` is told.
    """
    from epfabric_agent._native import NativeError

    local.offers.end()
    who = f"rank {local.rank} of {local.pod}"
    if local.opening is not None:  # the core's thread cannot be cut off
        done, _ = await asyncio.wait([local.opening], timeout=OPENED_S)
        if not done:
            give_up(f"the session of {who} was not opened in {OPENED_S:g} s")
    session = native = local.native
    local.native = None
    loop = asyncio.get_running_loop()
    end = loop.time() + CLOSED_S
    while native is not None:
        try:
            await ending(native.close)
            break
        except NativeError as error:
            _log.error("%s does not close: %s", who, error)
            if loop.time() > end:
                give_up(f"the session of {who} was not closed in {CLOSED_S:g} s: {error}")
                break
    # No pause in between: the epoch's end releases whoever serves by then.
    local.serving = session is not None and is_open(session)
    if local.serving:
        local.shrink()
    else:
        local.release()


def is_open(session: Session) -> bool:
    """Whether the core has not ended the session; after close() only that of a delegate is open."""
    from epfabric_agent._native import NativeError

    try:
        session.describe()
    except NativeError:
        return False
    return True
