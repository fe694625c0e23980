"""What a node's part in a group is told by its coordinator, the agent of another node, which may
say anything: nothing is raised, what the core and the pods get is within bounds, and all ends.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

import pytest
from epfabric import messages
from epfabric_agent import _native
from epfabric_agent._native import NativeError
from epfabric_agent.groups.bounds import MAX_EPOCH
from epfabric_agent.groups.context import PartContext
from epfabric_agent.groups.local_rank import LocalRank
from epfabric_agent.groups.part import Part
from epfabric_agent.peers.client import Agent, PeerClient
from epfabric_agent.proto import peer_pb2 as pb
from fuzz.generate import TIMES, filled, received, say, seeds

COUNT = 1_500
WORLD, END_S = 3, 10.0


class Session:
    """A rank's, as far as its part uses it."""

    region_bytes = 4096

    def __init__(self) -> None:
        self.closed = False

    def describe(self) -> bytes:
        if self.closed:
            raise NativeError("closed")
        return b"blob"

    def drain(self, timeout_ms: int) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


class FakeCore:
    """Refuses at random, and takes only what fits its types (native/module.cc)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def open_epoch(
        self, group: int, epoch: int, local: list[_native.Session],
        remote: list[_native.RemoteRank], leader_rank: int, nodes: list[list[int]],
        barrier_timeout_ms: int, *, mask: bool, uid: bytes, dissemination: bool,
    ) -> None:  # fmt: skip
        assert 0 < epoch <= MAX_EPOCH
        assert len(local) + len(remote) == sum(map(len, nodes)) > leader_rank
        assert local
        assert len(uid) == 16
        self._answer()

    def _answer(self, *_: Any) -> None:
        if self._rng.random() < 0.05:
            raise NativeError("it cannot")

    start_epoch = rank_left = mask_ranks = exclude_ranks = _answer

    def atomics(self, group: int) -> str:
        return "emulated: a stand-in has no NIC"

    def absent(self, group: int, barrier: int) -> list[int]:
        return [0]

    def fail_epoch(self, group: int, reason: str) -> None: ...

    def close_epoch(self, group: int) -> None: ...

    def forget_group(self, group: int) -> None: ...


class Hostile:
    """The link to such a coordinator; the next one goes on with what was not said yet."""

    node = "b"

    def __init__(self, said: list[pb.ToMember]) -> None:
        self._said = said
        self.open = True

    def send(self, message: pb.ToCoordinator) -> None: ...

    async def messages(self) -> AsyncGenerator[pb.ToMember, None]:
        while self._said:
            await asyncio.sleep(0)
            yield self._said.pop(0)
        await asyncio.sleep(END_S)

    async def close(self) -> None:
        self.open = False


class Site:
    """A part with its ranks 0 and 1."""

    def __init__(self, rng: random.Random) -> None:
        self.said = said(rng)
        self.link = Hostile(self.said)
        self.part = Part("ns/g", self.context(rng))
        self.ranks = [self.rank(rank) for rank in range(2)]

    async def attend(self, *_: Any) -> Hostile:
        self.link = Hostile(self.said)
        return self.link

    def context(self, rng: random.Random) -> PartContext:
        async def find(_: str) -> Agent:
            return Agent("b", "10.0.0.2:7000")

        return PartContext(
            node="a",
            endpoint="10.0.0.1:7000",
            core=FakeCore(rng),
            client=cast(PeerClient, self),
            join_timeout_s=END_S,
            barrier_timeout_ms=1000,
            dissemination=False,
            nic_faults=lambda _: "",
            mask=False,
            find=find,
            observe=lambda: None,
            changed=lambda: None,
            give_up=lambda why: pytest.fail(why),
            coordinator=lambda _: None,
            next_handle=itertools.count(1).__next__,
            orphaned=lambda _: None,
            epoch_ended=lambda *_: None,
        )

    def rank(self, rank: int) -> LocalRank:
        def failed(epoch: int, reason: str) -> None:
            messages.encode(messages.Failed(epoch=epoch, reason=reason))

        handle = self.part.admit(rank, WORLD, f"ns/pod-{rank}")
        local = LocalRank(rank, WORLD, f"ns/pod-{rank}", handle, rank, failed, lambda: None)
        local.native = cast(Any, Session())
        self.part.ranks[rank] = local
        return local


def said(rng: random.Random) -> list[pb.ToMember]:
    """An epoch that may open and start, with anything before, between and after."""
    likely: dict[str, Callable[[], Any]] = {
        "epoch": lambda: 1,
        "nodes": lambda: ["a", "b"],
        "node": lambda: rng.randrange(2),
        "rank": lambda: rng.randrange(WORLD),
        "ranks": lambda: [rng.randrange(WORLD) for _ in range(rng.randrange(WORLD))],
        "region_bytes": lambda: 4096,
        "reason": lambda: rng.choice(("", "it was lost")),
        "uid": lambda: bytes(16),
    }
    plan = pb.Open(epoch=1, nodes=["a", "b"], uid=bytes(16), mask=rng.random() < 0.5)
    for rank in range(WORLD):
        plan.ranks.add(rank=rank, node=rank // 2, region_bytes=4096, blob=b"blob")
    out = []
    for good in (pb.ToMember(open=plan), pb.ToMember(start=pb.Start(epoch=1)), None):
        for _ in range(rng.choice((0, 0, 1, 2)) if good is not None else rng.randrange(8)):
            message = pb.ToMember()
            filled(rng, message, likely)
            out.append(received(rng, message))
        out.append(received(rng, good) if good is not None else None)
    return [message for message in out if message is not None]


async def execute(seed: int) -> tuple[int, int]:
    site = Site(random.Random(seed))
    heard = len(site.said)
    joins = [asyncio.create_task(site.part.join(local)) for local in site.ranks]
    async with asyncio.timeout(END_S / 2):
        while site.said and (site.link.open or not all(join.done() for join in joins)):
            await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        await site.part.close("the test ends")
        replies = await asyncio.gather(*joins)
        while site.part.in_use:  # an epoch that was closing already is not waited for
            await asyncio.sleep(0.001)
    for reply in replies:
        messages.encode(reply)
    return heard, sum(isinstance(reply, messages.JoinReply) for reply in replies)


@pytest.mark.timeout(120 + 300 * TIMES)
async def test_nothing_that_a_coordinator_says_breaks_a_part(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    heard = joined = 0
    caplog.set_level(logging.ERROR)
    for seed in seeds(COUNT):
        try:
            messages_heard, joins = await execute(seed)
        except (Exception, pytest.fail.Exception) as error:
            raise AssertionError(f"EPFABRIC_SEED={seed}") from error
        assert not caplog.records, f"EPFABRIC_SEED={seed}: {caplog.text}"
        heard, joined = heard + messages_heard, joined + joins
    if len(seeds(COUNT)) >= COUNT:  # of few executions any number may
        assert joined > len(seeds(COUNT)) // 2, "most epochs open, of two ranks each"
    say(capsys, f"member: {len(seeds(COUNT)):,} executions, {heard:,} messages")
