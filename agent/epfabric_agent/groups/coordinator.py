"""Carries out what membership decides, for one group whose rank 0 is on this node.

Each node that takes part has a seat; its outbox is read by the peer server, or by the node's own
part of the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from epfabric import limits

from epfabric_agent.groups.membership import Membership, Stage
from epfabric_agent.groups.state import Action, Entrant, GroupState, Send
from epfabric_agent.proto import peer_pb2 as pb

_OF_A_PART = {"opened", "overdue", "broken"}
MOST_UNREAD = 2 * limits.MAX_WORLD  # a node with all ranks is told less in one go


@dataclass(eq=False)
class Seat:
    """A node's place at the coordinator; None in the outbox ends it."""

    node: str
    outbox: asyncio.Queue[pb.ToMember | None] = field(default_factory=asyncio.Queue)
    deaf: bool = False
    """It did not read what it was told, and is told nothing any more."""


class Coordinator:
    def __init__(
        self,
        membership: Membership,
        publish: Callable[[GroupState], None],
        on_idle: Callable[[], None],
    ) -> None:
        self._membership = membership
        self._publish = publish
        self._on_idle = on_idle
        self._seats: dict[str, Seat] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def may_go(self) -> bool:
        """No epoch is open, so that rank 0 may as well come up elsewhere."""
        return self._membership.stage in (Stage.IDLE, Stage.FORMING)

    @property
    def epoch(self) -> int:
        return self._membership.epoch

    def attach(self, node: str, endpoint: str, last_epoch: int) -> Seat:
        """Gives `node` its seat; an earlier one of the same node ends."""
        earlier = self._seats.get(node)
        if earlier is not None:
            self.detach(earlier, "its agent attached anew")
            earlier.outbox.put_nowait(None)
        seat = self._seats[node] = Seat(node)
        self._membership.attach(node, endpoint, last_epoch)
        return seat

    def detach(self, seat: Seat, why: str) -> None:
        """The node takes part no longer (idempotent)."""
        if self._seats.get(seat.node) is not seat:
            return
        del self._seats[seat.node]
        self._apply(self._membership.detach(seat.node, why, self._loop.time()))

    def cut_off(self, seat: Seat, why: str) -> None:
        """The node does not read: it is told nothing any more, and soon takes part no longer."""
        seat.deaf = True
        seat.outbox = asyncio.Queue()
        seat.outbox.put_nowait(None)
        # Not now: what is told here is part of more, which would be said after what follows.
        self._loop.call_soon(self.detach, seat, why)

    def receive(self, seat: Seat, message: pb.ToCoordinator) -> None:
        """What the node says; ignored from a seat that has ended."""
        if self._seats.get(seat.node) is seat:
            self._apply(self._decide(seat.node, message))

    def dissolve(self) -> None:
        """Rank 0 is here no longer: everyone else looks for its new place."""
        for seat in list(self._seats.values()):
            self.detach(seat, "the coordinator has gone")
            seat.outbox.put_nowait(None)
        if self._timer is not None:
            self._timer.cancel()

    def _decide(self, node: str, message: pb.ToCoordinator) -> list[Action]:
        now, to = self._loop.time(), self._membership
        kind = message.WhichOneof("kind")
        if kind in _OF_A_PART and not to.has_part(node):
            return []
        match kind:
            case "enter":
                e = message.enter
                entrant = Entrant(e.rank, e.world_size, node, e.pod, e.region_bytes, e.blob)
                return to.enter(entrant, now)
            case "withdraw":
                return to.withdraw(node, message.withdraw.rank, now)
            case "opened":
                return to.opened(node, message.opened.epoch, message.opened.error, now)
            case "leaving":
                return to.leaving(node, message.leaving.epoch, message.leaving.rank, now)
            case "quiesced":
                return to.quiesced(node, message.quiesced.epoch, now)
            case "lost":
                lost = message.lost
                return to.lost(node, lost.epoch, lost.rank, lost.reason, now)
            case "unreachable":
                gone = message.unreachable
                return to.unreachable(node, gone.epoch, list(gone.ranks), gone.reason, now)
            case "overdue":
                overdue = message.overdue
                return to.overdue(overdue.epoch, overdue.barrier, overdue.reason, now)
            case "absent":
                absent = message.absent
                return to.absent(node, absent.epoch, absent.barrier, list(absent.ranks), now)
            case "broken":
                return to.broken(node, message.broken.epoch, message.broken.reason, now)
        return []

    def _apply(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._tell(action.node, action.message)
            else:
                self._publish(action.state)
        self._arm()
        if self._membership.stage is Stage.IDLE:
            self._loop.call_soon(self._on_idle)

    def _tell(self, node: str, message: pb.ToMember) -> None:
        seat = self._seats.get(node)
        if seat is None or seat.deaf:
            return
        seat.outbox.put_nowait(message)
        if seat.outbox.qsize() > MOST_UNREAD:
            self.cut_off(seat, "it does not read what it is told")

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = self._membership.deadline
        self._timer = self._loop.call_at(at, self._tick) if at is not None else None

    def _tick(self) -> None:
        self._apply(self._membership.tick(self._loop.time()))


class NearLink:
    """The link of the coordinator's own node; see peers.link.Link."""

    def __init__(self, coordinator: Coordinator, node: str, endpoint: str, epoch: int) -> None:
        self._coordinator = coordinator
        self._seat = coordinator.attach(node, endpoint, epoch)

    @property
    def node(self) -> str:
        return self._seat.node

    def send(self, message: pb.ToCoordinator) -> None:
        self._coordinator.receive(self._seat, message)

    async def messages(self) -> AsyncGenerator[pb.ToMember, None]:
        while (message := await self._seat.outbox.get()) is not None:
            yield message

    async def close(self) -> None:
        self._coordinator.detach(self._seat, "it ended its part in the group")
