"""Who is in which epoch of a group: the coordinator's decisions, without clock, network or core.

Every method takes what happened and returns what is to be done. One epoch goes
forming → opening (all ranks are there, nodes connect) → running → ended; the next begins at the
first rank that enters after. Ranks that enter while an epoch runs wait for the next one.
"""

from __future__ import annotations

import enum
from dataclasses import replace

from epfabric_agent.groups.admission import duplicate, misfit, outside, refused
from epfabric_agent.groups.bounds import MAX_LAST_EPOCH
from epfabric_agent.groups.departures import Departures, Round
from epfabric_agent.groups.ranges import format_ranges, spoken
from epfabric_agent.groups.rollcall import RollCalls
from epfabric_agent.groups.roster import Roster
from epfabric_agent.groups.state import (
    MAX_REASON,
    Action,
    Entrant,
    GroupState,
    Limits,
    Phase,
    Publish,
    Send,
)
from epfabric_agent.proto import peer_pb2 as pb


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
        self._members = Roster()
        self._waiting: dict[int, Entrant] = {}
        self._endpoints: dict[str, str] = {}
        self._unopened: set[str] = set()
        self._departures = Departures()
        self._roll = RollCalls()
        self._why_masked = ""
        self._deadline: float | None = None

    @property
    def deadline(self) -> float | None:
        """When tick() has something to do."""
        roll = self._roll.now.deadline if self._roll.now is not None else None
        return min((at for at in (self._deadline, roll) if at is not None), default=None)

    def has_part(self, node: str) -> bool:
        """The present epoch has ranks of the node, or had: only such a node has a say in it."""
        return bool(self._members.ranks_of(node))

    def attach(self, node: str, endpoint: str, last_epoch: int) -> None:
        """The agent of `node` takes part from now on."""
        self._endpoints[node] = endpoint
        if self.stage is Stage.IDLE:
            self.epoch = max(self.epoch, min(last_epoch, MAX_LAST_EPOCH))

    def detach(self, node: str, why: str, now: float) -> list[Action]:
        """The agent of `node` takes part no longer: its stream ended."""
        if self._endpoints.pop(node, None) is None:
            return []
        self._waiting = {r: e for r, e in self._waiting.items() if e.node != node}
        ranks = self._ranks_of(node)
        if self.stage in (Stage.OPENING, Stage.RUNNING):
            return self._lose_node(node, ranks, why, now)
        for rank in ranks:
            self._members.remove(rank)
        return self._end_if_empty(now)

    def enter(self, entrant: Entrant, now: float) -> list[Action]:
        """A rank asks to be in the epoch that forms, or in the next one."""
        if refusal := outside(entrant):
            return [refusal]
        if self.stage in (Stage.OPENING, Stage.RUNNING):
            holder = self._waiting.get(entrant.rank)
            if holder is None and entrant.rank not in self._departures.gone:
                holder = self._members.get(entrant.rank)
            if holder is not None:
                return [refused(entrant, "duplicate-rank", duplicate(entrant, holder))]
            self._waiting[entrant.rank] = entrant
            return []
        if self.stage is Stage.IDLE:
            self._begin(entrant.world_size, now)
        if refusal := misfit(entrant, self.group, self._world, self._members):
            return [refusal]
        self._members.add(entrant)
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
            self._members.remove(rank)
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
        return [Publish(self._state()), *(Send(node, start) for node in self._members.nodes())]

    def leaving(self, node: str, epoch: int, rank: int, now: float) -> list[Action]:
        """A rank has finished its work and wants to go."""
        member = self._members.get(rank)
        if epoch != self.epoch or self.stage is not Stage.RUNNING or member is None:
            return []
        if member.node != node or not self._departures.ask(rank):
            return []
        return self._next_round(now)

    def quiesced(self, node: str, epoch: int, now: float) -> list[Action]:
        """A node writes no longer to the ranks that leave, or has masked those that are lost."""
        if epoch != self.epoch or self.stage is not Stage.RUNNING:
            return []
        self._departures.answered(node)
        return self._finish_round(now)

    def lost(self, node: str, epoch: int, rank: int, reason: str, now: float) -> list[Action]:
        """A rank's session ended without leave."""
        member = self._members.get(rank)
        if epoch != self.epoch or member is None or member.node != node:
            return []
        if self.stage not in (Stage.OPENING, Stage.RUNNING) or rank in self._departures.left:
            return []
        text = f"rank {rank} ({member}) was lost: {reason}"
        if self._masks:
            return self._lose([rank], text, now)
        return self._fail(text, now)

    def unreachable(
        self, node: str, epoch: int, ranks: list[int], reason: str, now: float
    ) -> list[Action]:
        """Nothing of `node` reaches these ranks any more, or its own gave up. They are lost; if
        they are on the coordinator's node, which must stay, then it is `node` that is cut off."""
        known = [self._members[rank] for rank in sorted(set(ranks)) if rank in self._members]
        here = self._ranks_of(node)
        if epoch != self.epoch or not self._masks or not known or not here:
            return []
        if any(m.node == self._members[0].node != node for m in known):
            return self._lose(here, f"node {node} is cut off: {reason}", now)
        return self._lose([member.rank for member in known], reason, now)

    def overdue(self, epoch: int, barrier: int, reason: str, now: float) -> list[Action]:
        """A barrier takes too long: every node is asked who is missing."""
        if epoch != self.epoch or not self._masks:
            return []
        nodes = sorted(self._departures.open_nodes() & self._endpoints.keys())
        if not self._roll.begin(barrier, reason, nodes, now + self._bounds.quiesce_s):
            return []
        call = pb.ToMember(roll_call=pb.RollCall(epoch=epoch, barrier=barrier))
        return [Send(node, call) for node in nodes]

    def absent(
        self, node: str, epoch: int, barrier: int, ranks: list[int], now: float
    ) -> list[Action]:
        """Which of its ranks a node did not see at a barrier."""
        if epoch != self.epoch or not self._masks:
            return []
        here = set(self._ranks_of(node))
        self._roll.answer(node, barrier, [rank for rank in ranks if rank in here])
        return self._finish_roll(now)

    def broken(self, node: str, epoch: int, reason: str, now: float) -> list[Action]:
        """The core of a node cannot go on."""
        if epoch != self.epoch or self.stage not in (Stage.OPENING, Stage.RUNNING):
            return []
        return self._fail(f"node {node}: {reason}", now)

    def tick(self, now: float) -> list[Action]:
        """To be called when the deadline has passed."""
        if self.deadline is None or now < self.deadline:
            return []
        if self._roll.now is not None and now >= self._roll.now.deadline:
            nodes = ", ".join(sorted(self._roll.now.waits_for))
            return self._fail(
                f"{self._roll.now.reason}, and node(s) {nodes} did not say who is missing", now
            )
        if self.stage is Stage.FORMING:
            return self._join_timeout(now)
        if self.stage is Stage.OPENING:
            nodes = ", ".join(sorted(self._unopened))
            return self._fail(
                f"node(s) {nodes} did not connect with the group in {self._bounds.open_s:g} s", now
            )
        held = self._departures.round
        assert held is not None
        nodes = ", ".join(sorted(held.waits_for))
        return self._fail(
            f"node(s) {nodes} did not let {spoken(held.ranks)} go in {self._bounds.quiesce_s:g} s",
            now,
        )

    def _begin(self, world_size: int, now: float) -> None:
        self.epoch += 1
        self.stage = Stage.FORMING
        self._world = world_size
        self._members = Roster()
        self._why_masked = ""
        self._deadline = now + self._bounds.join_s

    def _open(self, now: float) -> list[Action]:
        self.stage = Stage.OPENING
        self._deadline = now + self._bounds.open_s
        nodes = self._members.nodes()
        self._unopened = set(nodes)
        index = {node: i for i, node in enumerate(nodes)}
        ranks = [
            pb.RankInfo(rank=r, node=index[e.node], region_bytes=e.region_bytes, blob=e.blob)
            for r, e in sorted(self._members.items())
        ]
        self._departures = Departures({rank: e.node for rank, e in self._members.items()})
        plan = pb.Open(epoch=self.epoch, nodes=nodes, ranks=ranks, uid=self._uid)
        plan.leader_rank, plan.mask = 0, self._bounds.mask
        plan.dissemination = self._bounds.dissemination
        message = pb.ToMember(open=plan)
        return [Publish(self._state()), *(Send(node, message) for node in nodes)]

    @property
    def _masks(self) -> bool:
        """A loss does not end the epoch now."""
        return self.stage is Stage.RUNNING and self._bounds.mask

    def _lose_node(self, node: str, ranks: list[int], why: str, now: float) -> list[Action]:
        reason = f"the agent of node {node} ({spoken(ranks)}) was lost: {why}"
        if node in self._departures.kept_nodes():
            return self._fail(f"the agent of node {node}, which coordinates, was lost: {why}", now)
        if ranks and (not self._masks or node == self._members[0].node):
            return self._fail(reason, now)
        self._departures.forget_node(node)
        self._roll.forget_node(node)
        actions = self._lose(ranks, reason, now) or self._finish_round(now)
        return [*actions, *self._finish_roll(now)]

    def _lose(self, ranks: list[int], reason: str, now: float) -> list[Action]:
        """Ranks are lost, and the epoch goes on without them if anybody is left."""
        if not self._departures.lose(ranks):
            return []
        self._why_masked = reason[:MAX_REASON]
        if not self._departures.survivors:
            return self._fail(reason, now)
        return [*self._finish_round(now), *self._next_round(now)]

    def _next_round(self, now: float) -> list[Action]:
        begun = self._departures.begin(self._endpoints)
        if begun is None:
            return []
        if not begun.waits_for:
            return self._finish_round(now)
        self._deadline = now + self._bounds.quiesce_s
        if begun.masks:
            mask = pb.Mask(epoch=self.epoch, ranks=begun.ranks, reason=self._why_masked)
            message = pb.ToMember(mask=mask)
        else:
            left = pb.RanksLeft(epoch=self.epoch, ranks=begun.ranks)
            message = pb.ToMember(ranks_left=left)
        return [Send(node, message) for node in begun.nodes]

    def _finish_round(self, now: float) -> list[Action]:
        done = self._departures.finish()
        if done is None:
            return []
        self._deadline = None
        actions = self._excluded(done) if done.masks else self._let_go(done)
        if self._departures.over:
            return [*actions, *self._complete(now)]
        return [*actions, *self._next_round(now)]

    def _let_go(self, done: Round) -> list[Action]:
        here: dict[str, list[int]] = {}
        for rank in done.ranks:
            here.setdefault(self._members[rank].node, []).append(rank)
        done_of = (
            (node, pb.LeaveDone(epoch=self.epoch, ranks=here[node])) for node in sorted(here)
        )
        return [Send(node, pb.ToMember(leave_done=message)) for node, message in done_of]

    def _excluded(self, done: Round) -> list[Action]:
        message = pb.ToMember(exclude=pb.Exclude(epoch=self.epoch, ranks=done.ranks))
        return [*(Send(node, message) for node in done.nodes), Publish(self._state())]

    def _complete(self, now: float) -> list[Action]:
        over = pb.ToMember(leave_done=pb.LeaveDone(epoch=self.epoch, over=True))
        kept: list[Action] = [Send(node, over) for node in sorted(self._departures.kept_nodes())]
        masked = self._departures.masked
        but = f", but for {spoken(masked)}: {self._why_masked}" if masked else ""
        return [*kept, *self._end("Completed", f"all ranks left in order{but}"[:MAX_REASON], now)]

    def _finish_roll(self, now: float) -> list[Action]:
        call = self._roll.finish()
        if call is None:
            return []
        if call.absent:
            where = ", ".join(f"{rank} ({self._members[rank]})" for rank in sorted(call.absent))
            reason = f"{call.reason}; {spoken(call.absent)} did not come: {where}"
            return self._lose(sorted(call.absent), reason, now)
        if self._roll.in_vain(call):
            return self._fail(f"{call.reason}, though every rank had entered it", now)
        return []

    def _fail(self, reason: str, now: float) -> list[Action]:
        reason = reason[:MAX_REASON]
        message = pb.ToMember(fail=pb.Fail(epoch=self.epoch, reason=reason))
        sends: list[Action] = [Send(node, message) for node in self._members.nodes()]
        return [*sends, *self._end("Failed", reason, now)]

    def _join_timeout(self, now: float) -> list[Action]:
        missing = [rank for rank in range(self._world) if rank not in self._members]
        text = (
            f"{spoken(missing)} of {self._world} did not join group {self.group} in "
            f"{self._bounds.join_s:g} s: look at the pods that should hold "
            f"{'it' if len(missing) == 1 else 'them'}"
        )[:MAX_REASON]
        refusals: list[Action] = [
            refused(entrant, "join-timeout", text) for entrant in self._members.values()
        ]
        return [*refusals, *self._end("Failed", text, now)]

    def _end(self, phase: Phase, reason: str, now: float) -> list[Action]:
        actions: list[Action] = [Publish(self._state(phase, reason))]
        self.stage = Stage.IDLE
        self._deadline = None
        self._departures, self._roll = Departures(), RollCalls()
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
        """The node's ranks that have neither left nor been lost."""
        gone = self._departures.left | self._departures.losing
        return [rank for rank in self._members.ranks_of(node) if rank not in gone]

    def _state(self, phase: Phase | None = None, reason: str = "") -> GroupState:
        here = phase or _PHASES[self.stage]
        if not reason and here == "Forming":
            reason = f"{len(self._members)} of {self._world} ranks are there"
        masked = self._departures.masked
        if not reason and masked:
            reason = f"goes on without {spoken(masked)}: {self._why_masked}"[:MAX_REASON]
        parts = self._members.parts(self._endpoints)
        state = GroupState(here, reason, self.epoch, self._world, parts)
        return replace(state, masked=format_ranges(masked))
