"""What a coordinator is told by the agent of another node, which may say anything once it is let
in: nothing is raised, no number or text grows out of bounds, and when it has gone the group forms.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from epfabric_agent.groups.bounds import MAX_BLOB, MAX_EPOCH, MAX_NAME, fault_of_plan
from epfabric_agent.groups.coordinator import Coordinator, Seat
from epfabric_agent.groups.membership import Membership, Stage
from epfabric_agent.groups.state import MAX_REASON, GroupState, Limits
from epfabric_agent.peers.server import PeerService
from epfabric_agent.peers.versions import SPOKEN
from epfabric_agent.proto import peer_pb2 as pb
from fuzz.generate import TIMES, filled, received, say, seeds

COUNT = 6_000
GROUP, UID = "ns/g", bytes(16)


class Refused(Exception):
    """The call was, with a status."""


class Context:
    """Of a call whose certificate is that of node b's agent."""

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_subject_alternative_name": [b"b.moe.agents.epfabric.io"]}

    async def abort(self, code: Any, text: str) -> None:
        raise Refused(code, text)


class Watched(Coordinator):
    """A coordinator of which errors are seen, although the server lives with them."""

    def __init__(self, rng: random.Random) -> None:
        self.states: list[GroupState] = []
        self.membership = Membership(GROUP, 0, Limits(60.0, mask=rng.random() < 0.5), UID)
        super().__init__(self.membership, self.states.append, lambda: None)
        self.errors: list[Exception] = []
        self.heard = 0

    def receive(self, seat: Seat, message: pb.ToCoordinator) -> None:
        self.heard += 1
        try:
            super().receive(seat, message)
        except Exception as error:
            self.errors.append(error)
            raise


def honest(rng: random.Random, epoch: int) -> pb.ToCoordinator:
    """What the coordinator's own node says at some time."""
    rank, world = rng.randrange(2), rng.choice((1, 2, 3))
    enter = pb.Enter(rank=rank, world_size=world, pod="ns/p", region_bytes=4096, blob=b"blob")
    opened = pb.ToCoordinator(opened=pb.Opened(epoch=epoch))
    return rng.choice(
        [
            pb.ToCoordinator(enter=enter),
            opened,
            opened,
            pb.ToCoordinator(quiesced=pb.Quiesced(epoch=epoch)),
            pb.ToCoordinator(leaving=pb.Leaving(epoch=epoch, rank=rank)),
            pb.ToCoordinator(lost=pb.Lost(epoch=epoch, rank=rank, reason="it ended")),
        ]
    )


async def said(rng: random.Random, made: Watched, own: Seat) -> AsyncIterator[pb.ToCoordinator]:
    """The hostile agent's stream; in between the own node goes on, and time passes."""
    now_s = asyncio.get_running_loop().time()
    likely: dict[str, Callable[[], Any]] = {
        "node": lambda: "b",
        "fabric": lambda: "moe",
        "oldest": lambda: 1,
        "newest": lambda: 1,
        "group": lambda: GROUP,
        "endpoint": lambda: "10.0.0.2:7000",
        "last_epoch": lambda: 1,
        "epoch": lambda: made.membership.epoch,
        "rank": lambda: rng.randrange(3),
        "ranks": lambda: [rng.randrange(3) for _ in range(rng.randrange(4))],
        "world_size": lambda: rng.choice((1, 2, 3)),
        "barrier": lambda: rng.randrange(2),
        "error": str,
    }
    attach = pb.ToCoordinator()
    filled(rng, attach.attach, likely)
    yield attach
    for _ in range(rng.randrange(30)):
        if rng.random() < 0.5:
            made.receive(own, honest(rng, made.membership.epoch))
            continue
        if rng.random() < 0.02:
            made.membership.tick(now_s + 1e6)
            continue
        message = pb.ToCoordinator()
        filled(rng, message, likely)
        if (heard := received(rng, message)) is not None:
            yield heard
            await asyncio.sleep(0)  # it is read


def check_bounds(made: Watched, told: list[pb.ToMember]) -> None:
    for state in made.states:
        assert len(state.reason) <= MAX_REASON
        assert state.epoch <= MAX_EPOCH
        assert all(len(part.endpoint) <= MAX_NAME for part in state.nodes)
    for message in told:
        plan = message.open
        if message.WhichOneof("kind") == "open":
            assert fault_of_plan(plan, plan.nodes[0], {}) is None
            assert all(len(info.blob) <= MAX_BLOB for info in plan.ranks)


async def execute(seed: int) -> int:
    rng = random.Random(seed)
    made = Watched(rng)
    own = made.attach("a", "10.0.0.1:7000", 0)
    here = SimpleNamespace(coordinator=lambda group: made if group == GROUP else None)
    service = PeerService("a", "moe", here, SPOKEN)
    told: list[pb.ToMember] = []
    with contextlib.suppress(Refused):
        told += [message async for message in service.Attend(said(rng, made, own), Context())]
    assert not made.errors, made.errors
    made.detach(own, "the test ends")
    assert made.membership.stage is Stage.IDLE, "nobody is left"
    while not own.outbox.empty():
        told.append(own.outbox.get_nowait() or pb.ToMember())
    check_bounds(made, told)
    seat = made.attach("a", "10.0.0.1:7000", 0)
    enter = pb.Enter(rank=0, world_size=1, pod="ns/p", region_bytes=4096, blob=b"blob")
    made.receive(seat, pb.ToCoordinator(enter=enter))
    plan = seat.outbox.get_nowait()
    assert plan is not None
    check_bounds(made, [plan])
    made.receive(seat, pb.ToCoordinator(opened=pb.Opened(epoch=plan.open.epoch)))
    start = seat.outbox.get_nowait()
    assert start is not None
    assert start.start.epoch == made.membership.epoch, "others' groups form"
    made.dissolve()
    return made.heard


@pytest.mark.timeout(120 + 300 * TIMES)
async def test_nothing_that_a_node_says_breaks_its_coordinator(
    capsys: pytest.CaptureFixture[str],
) -> None:
    heard = 0
    for seed in seeds(COUNT):
        try:
            heard += await execute(seed)
        except (Exception, pytest.fail.Exception) as error:
            raise AssertionError(f"EPFABRIC_SEED={seed}") from error
    say(capsys, f"coordinator: {len(seeds(COUNT)):,} executions, {heard:,} messages")
