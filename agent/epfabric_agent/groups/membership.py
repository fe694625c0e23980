"""Who is in which epoch of a group: the coordinator's decisions, without clock, network or core.

Every method takes what happened and returns what is to be done. One epoch goes
forming → opening (all ranks are there, nodes connect) → running → ended; the next begins at the
first rank that enters after. Ranks that enter while an epoch runs wait for the next one.
"""

from __future__ import annotations

import enum

from epfabric import limits

from epfabric_agent.groups.leaving import LeaveRounds
from epfabric_agent.groups.ranges import format_ranges, spoken
from epfabric_agent.groups.state import (
    Action,
    Entrant,
    GroupState,
    Limits,
    NodePart,
    Phase,
    Publish,
    Send,
)
from epfabric_agent.proto import peer_pb2 as pb

MAX_REASON = 1000


class Stage(enum.Enum):
    """Where the present epoch is."""

    IDLE = "idle"
    FORMING = "forming"
    OPENING = "opening"
    RUNNING = "running"


_PHASES: dict[Stage, Phase] = {
    Stage.FORMING: "Forming",
    Stage.OPENING: "Forming",
    Stage.RUNNING: "Ready",
}


class Membership:
    """The coordinator's view of one group."""

    def __init__(self, group: str, epoch: int, bounds: Limits, uid: bytes) -> None:
        """`epoch`: the last one that the group is known to have had; 0 for none.

        `uid`: 16 bytes that no other group has, nor an earlier coordinator of this one.
        """
        self.group = group
        self.epoch = epoch
        self.stage = Stage.IDLE
        self._bounds = bounds
        self._uid = uid
        self._world = 0
        self._members: dict[int, Entrant] = {}
        self._waiting: dict[int, Entrant] = {}
        self._endpoints: dict[str, str] = {}
        self._unopened: set[str] = set()
        self._leaves = LeaveRounds()
        self._deadline: float | None = None

    @property
    def deadline(self) -> float | None:
        """When tick() has something to do."""
        return self._deadline

    def attach(self, node: str, endpoint: str, last_epoch: int) -> None:
        """The agent of `node` takes part from now on."""
        self._endpoints[node] = endpoint
        if self.stage is Stage.IDLE:
            self.epoch = max(self.epoch, last_epoch)

    def detach(self, node: str, why: str, now: float) -> list[Action]:
        """The agent of `node` takes part no longer: its stream ended."""
        if self._endpoints.pop(node, None) is None:
            return []
        self._waiting = {r: e for r, e in self._waiting.items() if e.node != node}
        ranks = self._ranks_of(node)
        if self.stage in (Stage.OPENING, Stage.RUNNING):
            if ranks:
                return self._fail(
                    f"the agent of node {node} ({spoken(ranks)}) was lost: {why}", now
                )
            self._leaves.forget_node(node)
            return self._finish_round(now)
        for rank in ranks:
            del self._members[rank]
        return self._end_if_empty(now)

    def enter(self, entrant: Entrant, now: float) -> list[Action]:
        """A rank asks to be in the epoch that forms, or in the next one."""
        if not 1 <= entrant.world_size <= limits.MAX_WORLD:
            text = f"a world has 1 to {limits.MAX_WORLD} ranks, not {entrant.world_size}"
            return [_refused(entrant, "world-size", text)]
        if entrant.rank >= entrant.world_size:
            text = f"rank {entrant.rank} is outside a world of {entrant.world_size} ranks"
            return [_refused(entrant, "rank", text)]
        if self.stage in (Stage.OPENING, Stage.RUNNING):
            holder = self._waiting.get(entrant.rank)
            if holder is None and entrant.rank not in self._leaves.left:
                holder = self._members.get(entrant.rank)
            if holder is not None:
                return [_refused(entrant, "duplicate-rank", _duplicate(entrant, holder))]
            self._waiting[entrant.rank] = entrant
            return []
        if self.stage is Stage.IDLE:
            self._begin(entrant.world_size, now)
        if refusal := self._refusal(entrant):
            return [refusal]
        self._members[entrant.rank] = entrant
        if len(self._members) == self._world:
            return self._open(now)
        return [Publish(self._state())]

    def withdraw(self, node: str, rank: int, now: float) -> list[Action]:
        """A rank that had entered is gone; fatal if its epoch is open already."""
        waiting = self._waiting.get(rank)
        if waiting is not None and waiting.node == node:
            del self._waiting[rank]
            return []
        member = self._members.get(rank)
        if member is None or member.node != node:
            return []
        if self.stage is Stage.FORMING:
            del self._members[rank]
            return self._end_if_empty(now) or [Publish(self._state())]
        return self.lost(node, self.epoch, rank, "its session ended while the group opened", now)

    def opened(self, node: str, epoch: int, error: str, now: float) -> list[Action]:
        """A node is connected with all ranks, or failed to."""
        if epoch != self.epoch or self.stage is not Stage.OPENING:
            return []
        if error:
            return self._fail(f"node {node} could not connect with the group: {error}", now)
        self._unopened.discard(node)
        if self._unopened:
            return []
        self.stage = Stage.RUNNING
        self._deadline = None
        start = pb.ToMember(start=pb.Start(epoch=self.epoch))
        return [Publish(self._state()), *(Send(node, start) for node in self._nodes())]

    def leaving(self, node: str, epoch: int, rank: int, now: float) -> list[Action]:
        """A rank has finished its work and wants to go."""
        member = self._members.get(rank)
        if epoch != self.epoch or self.stage is not Stage.RUNNING or member is None:
            return []
        if member.node != node or not self._leaves.ask(rank):
            return []
        return self._next_round(now)

    def quiesced(self, node: str, epoch: int, now: float) -> list[Action]:
        """A node writes no longer to the ranks that leave."""
        if epoch != self.epoch or self.stage is not Stage.RUNNING:
            return []
        self._leaves.forget_node(node)
        return self._finish_round(now)

    def lost(self, node: str, epoch: int, rank: int, reason: str, now: float) -> list[Action]:
        """A rank's session ended without leave."""
        member = self._members.get(rank)
        if epoch != self.epoch or member is None or member.node != node:
            return []
        if self.stage not in (Stage.OPENING, Stage.RUNNING) or rank in self._leaves.left:
            return []
        return self._fail(f"rank {rank} ({member}) was lost: {reason}", now)

    def broken(self, node: str, epoch: int, reason: str, now: float) -> list[Action]:
        """The core of a node cannot go on."""
        if epoch != self.epoch or self.stage not in (Stage.OPENING, Stage.RUNNING):
            return []
        return self._fail(f"node {node}: {reason}", now)

    def tick(self, now: float) -> list[Action]:
        """To be called when the deadline has passed."""
        if self._deadline is None or now < self._deadline:
            return []
        if self.stage is Stage.FORMING:
            return self._join_timeout(now)
        if self.stage is Stage.OPENING:
            nodes = ", ".join(sorted(self._unopened))
            return self._fail(
                f"node(s) {nodes} did not connect with the group in {self._bounds.open_s:g} s", now
            )
        nodes = ", ".join(sorted(self._leaves.waits_for))
        return self._fail(
            f"node(s) {nodes} did not let {spoken(self._leaves.round)} go "
            f"in {self._bounds.quiesce_s:g} s",
            now,
        )

    def _begin(self, world_size: int, now: float) -> None:
        self.epoch += 1
        self.stage = Stage.FORMING
        self._world = world_size
        self._members = {}
        self._leaves = LeaveRounds()
        self._deadline = now + self._bounds.join_s

    def _refusal(self, entrant: Entrant) -> Send | None:
        if entrant.world_size != self._world:
            other = next(iter(self._members.values()))
            return _refused(
                entrant,
                "world-size",
                f"{entrant} says that group {self.group} has {entrant.world_size} ranks, {other} "
                f"said {self._world}: give every pod of the group the same WORLD_SIZE",
            )
        holder = self._members.get(entrant.rank)
        if holder is not None:
            return _refused(entrant, "duplicate-rank", _duplicate(entrant, holder))
        return None

    def _open(self, now: float) -> list[Action]:
        self.stage = Stage.OPENING
        self._deadline = now + self._bounds.open_s
        nodes = self._nodes()
        self._unopened = set(nodes)
        index = {node: i for i, node in enumerate(nodes)}
        ranks = [
            pb.RankInfo(rank=r, node=index[e.node], region_bytes=e.region_bytes, blob=e.blob)
            for r, e in sorted(self._members.items())
        ]
        message = pb.ToMember(
            open=pb.Open(epoch=self.epoch, nodes=nodes, ranks=ranks, leader_rank=0, uid=self._uid)
        )
        return [Publish(self._state()), *(Send(node, message) for node in nodes)]

    def _next_round(self, now: float) -> list[Action]:
        leaving = self._leaves.begin({r: e.node for r, e in self._members.items()})
        if not leaving:
            return []
        if not self._leaves.waits_for:
            return self._finish_round(now)
        self._deadline = now + self._bounds.quiesce_s
        message = pb.ToMember(ranks_left=pb.RanksLeft(epoch=self.epoch, ranks=leaving))
        return [Send(node, message) for node in sorted(self._leaves.waits_for)]

    def _finish_round(self, now: float) -> list[Action]:
        gone = self._leaves.finish()
        if not gone:
            return []
        self._deadline = None
        actions: list[Action] = []
        for node in sorted({self._members[rank].node for rank in gone}):
            ranks = [rank for rank in gone if self._members[rank].node == node]
            done = pb.LeaveDone(epoch=self.epoch, ranks=ranks)
            actions.append(Send(node, pb.ToMember(leave_done=done)))
        if len(self._leaves.left) == self._world:
            return [*actions, *self._end("Completed", "all ranks left in order", now)]
        return [*actions, *self._next_round(now)]

    def _fail(self, reason: str, now: float) -> list[Action]:
        reason = reason[:MAX_REASON]
        message = pb.ToMember(fail=pb.Fail(epoch=self.epoch, reason=reason))
        sends: list[Action] = [Send(node, message) for node in self._nodes()]
        return [*sends, *self._end("Failed", reason, now)]

    def _join_timeout(self, now: float) -> list[Action]:
        missing = [rank for rank in range(self._world) if rank not in self._members]
        text = (
            f"{spoken(missing)} of {self._world} did not join group {self.group} in "
            f"{self._bounds.join_s:g} s: look at the pods that should hold "
            f"{'it' if len(missing) == 1 else 'them'}"
        )[:MAX_REASON]
        refusals: list[Action] = [
            _refused(entrant, "join-timeout", text) for entrant in self._members.values()
        ]
        return [*refusals, *self._end("Failed", text, now)]

    def _end(self, phase: Phase, reason: str, now: float) -> list[Action]:
        actions: list[Action] = [Publish(self._state(phase, reason))]
        self.stage = Stage.IDLE
        self._deadline = None
        waiting, self._waiting = self._waiting, {}
        for entrant in waiting.values():
            if entrant.node in self._endpoints:
                actions.extend(self.enter(entrant, now))
        return actions

    def _end_if_empty(self, now: float) -> list[Action]:
        if self._members or self.stage is not Stage.FORMING:
            return []
        return self._end("Failed", "all ranks that had joined ended before the others came", now)

    def _ranks_of(self, node: str) -> list[int]:
        """The node's ranks that have not left."""
        left = self._leaves.left
        return [r for r, e in self._members.items() if e.node == node and r not in left]

    def _nodes(self) -> list[str]:
        """The epoch's nodes by their lowest rank."""
        return list(dict.fromkeys(e.node for _, e in sorted(self._members.items())))

    def _state(self, phase: Phase | None = None, reason: str = "") -> GroupState:
        here = phase or _PHASES[self.stage]
        if not reason and here == "Forming":
            reason = f"{len(self._members)} of {self._world} ranks are there"
        parts = tuple(
            NodePart(
                node,
                self._endpoints.get(node, ""),
                format_ranges(r for r, e in self._members.items() if e.node == node),
            )
            for node in self._nodes()
        )
        return GroupState(here, reason, self.epoch, self._world, parts)


def _refused(entrant: Entrant, code: str, message: str) -> Send:
    refused = pb.Refused(rank=entrant.rank, code=code, message=message[:MAX_REASON])
    return Send(entrant.node, pb.ToMember(refused=refused))


def _duplicate(entrant: Entrant, holder: Entrant) -> str:
    return (
        f"rank {entrant.rank} is held by {holder}; {entrant} asked for it too: "
        "give each pod of the group a rank of its own"
    )
