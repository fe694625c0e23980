"""One rank of a pod of this node, from hello to its end; made by session, moved by groups.part."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from epfabric import messages

from epfabric_agent.groups.peer_memory import Nvlink, Offers

if TYPE_CHECKING:
    from epfabric_agent._native import Session


class Stage(enum.Enum):
    """What a rank is doing; OVER is final."""

    OPEN = "open"  # said hello, may register
    JOINING = "joining"
    JOINED = "joined"
    LEAVING = "leaving"
    MASKED = "masked"  # lost, and the epoch goes on
    OVER = "over"


def said(reason: str) -> str:
    """As a session's message can hold it; never empty, so that a failure is seen to be one."""
    return reason[: messages.MAX_TEXT] or "no reason was given"


class Refusal(Exception):
    """A request that is refused, with a code of the session protocol."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def reply(self) -> messages.ErrorReply:
        """Of what another agent said too, which may be anything."""
        return messages.ErrorReply(code=self.code[:64] or "internal", message=said(str(self)))


@dataclass(eq=False)
class LocalRank:
    """`pod` is namespace/name, for people; `handle` is the core's number of its epoch's group."""

    rank: int
    world_size: int
    pod: str
    handle: int
    sample: int
    on_failed: Callable[[int, str], None]
    """Tells the pod that its epoch failed; called once, after its abort word was set."""
    release: Callable[[], None]
    """Gives back CPUs and memory; called once, after the core's session was closed."""
    linked: Callable[[], None] = lambda: None
    """Its links are there, or will not be: no memory is kept free for them any more."""
    on_trial: Callable[[tuple[int, ...]], None] = lambda _: None
    """Asks the pod to try the GPU memory of these ranks."""
    shrink: Callable[[], None] = lambda: None
    """Gives back the CPUs of all its proxies but the first."""
    hung_up: Callable[[], bool] = lambda: False
    """Whether the pod has closed its session, also where that was not read yet."""
    opening: asyncio.Task[None] | None = field(default=None, repr=False)
    """Makes `native`; has ended when the hello is answered."""
    native: Session | None = None
    stage: Stage = Stage.OPEN
    failure: str = ""
    serving: bool = False
    """Masked and closed, but its first proxy serves the node's barriers until the epoch ends."""
    nodes: tuple[str, ...] = ()
    """The nodes of its epoch, as the core numbers them."""
    answer: asyncio.Future[messages.Reply] | None = field(default=None, repr=False)
    gone: asyncio.Future[None] | None = field(default=None, repr=False)
    offers: Offers = field(default_factory=Offers, repr=False)
    nvlink: Nvlink | None = None
    """How it reaches the GPU memory of the node's other ranks, as it said last."""
    tried: asyncio.Future[None] | None = field(default=None, repr=False)
    """While it is to try that."""
    ended: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Nothing is left of it: another process may have its rank."""

    @property
    def ending(self) -> bool:
        return self.stage is Stage.OVER or self.hung_up()

    @property
    def session(self) -> Session:
        if self.native is None:
            raise Refusal("bad-state", "this session has ended")
        return self.native

    def settle(self, reply: messages.Reply) -> None:
        """Answers a join that waits."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(reply)

    def say(self, nvlink: Nvlink | None) -> None:
        """What it found; None: it will find nothing any more."""
        self.nvlink = nvlink or self.nvlink
        if self.tried is not None and not self.tried.done():
            self.tried.set_result(None)

    def let_go(self) -> None:
        """Ends a leave that waits."""
        if self.gone is not None and not self.gone.done():
            self.gone.set_result(None)
