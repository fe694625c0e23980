"""Values that an agent of another node made up: none is kept, given to the core or to a pod."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from epfabric import limits, messages
from epfabric_agent.groups.bounds import (
    MAX_BLOB,
    MAX_ENDPOINT,
    MAX_EPOCH,
    MAX_NAME,
    fault_of_attach,
    fault_of_plan,
)
from epfabric_agent.groups.coordinator import MOST_UNREAD, Coordinator, Seat
from epfabric_agent.groups.departures import Departures
from epfabric_agent.groups.local_rank import LocalRank, Refusal
from epfabric_agent.groups.membership import Membership, Stage
from epfabric_agent.groups.state import Action, Entrant, GroupState, Limits, Publish, Send
from epfabric_agent.proto import peer_pb2 as pb

ENTER = pb.Enter(rank=0, world_size=1, pod="ns/p", region_bytes=4096, blob=b"blob")


def coordinator(mask: bool = False) -> tuple[Coordinator, Membership, Seat]:
    """Of a group that runs on node a alone, and the seat of b, which has no rank of it."""
    membership = Membership("ns/g", 0, Limits(60.0, mask=mask), bytes(16))
    made = Coordinator(membership, lambda _: None, lambda: None)
    own, other = made.attach("a", "a:1", 0), made.attach("b", "b:1", 0)
    made.receive(own, pb.ToCoordinator(enter=ENTER))
    made.receive(own, pb.ToCoordinator(opened=pb.Opened(epoch=1)))
    assert membership.stage is Stage.RUNNING
    return made, membership, other


@pytest.mark.parametrize("last", [MAX_EPOCH, 1 << 32, (1 << 64) - 1])
def test_an_epoch_number_that_the_core_cannot_count_is_not_gone_on_from(last: int) -> None:
    made = Membership("ns/g", 5, Limits(60.0), bytes(16))
    made.attach("b", "b:1", last)
    actions = made.enter(Entrant(0, 1, "b", "ns/p", 4096, b"blob"), 0.0)
    (plan,) = [a.message.open for a in actions if isinstance(a, Send)]
    assert 5 < plan.epoch < MAX_EPOCH - 1_000_000, "many are left"


def test_an_endpoint_of_any_length_is_not_published() -> None:
    assert fault_of_attach(pb.Attach(endpoint="[::1]:7000")) is None
    assert fault_of_attach(pb.Attach(endpoint="x" * (MAX_ENDPOINT + 1)))
    assert fault_of_attach(pb.Attach())


@pytest.mark.parametrize(
    "change",
    [
        {"blob": b"x" * (MAX_BLOB + 1)},
        {"pod": "x" * (MAX_NAME + 1)},
        {"region_bytes": limits.REGION_SPACE_BYTES + 1},
    ],
    ids=str,
)
async def test_a_rank_that_no_session_can_be_is_refused_and_not_kept(
    change: dict[str, int | str | bytes],
) -> None:
    made, membership, other = coordinator()
    enter = pb.Enter()
    enter.CopyFrom(ENTER)
    for name, value in change.items():
        setattr(enter, name, value)
    made.receive(other, pb.ToCoordinator(enter=enter))
    told = other.outbox.get_nowait()
    assert told is not None
    assert told.refused.code == messages.BAD_REQUEST
    made.detach(other, "the test ends")
    assert membership.stage is Stage.RUNNING


@pytest.mark.parametrize(
    "message",
    [
        pb.ToCoordinator(broken=pb.Broken(epoch=1, reason="because")),
        pb.ToCoordinator(overdue=pb.Overdue(epoch=1, barrier=0, reason="late")),
        pb.ToCoordinator(opened=pb.Opened(epoch=2, error="no")),
    ],
    ids=lambda message: message.WhichOneof("kind"),
)
async def test_a_node_without_ranks_has_no_say_in_an_epoch(message: pb.ToCoordinator) -> None:
    made, membership, other = coordinator(mask=True)
    if message.WhichOneof("kind") == "opened":  # while the next epoch opens
        own = made.attach("a", "a:1", 0)
        made.receive(own, pb.ToCoordinator(enter=ENTER))
        assert membership.stage is Stage.OPENING
    stage, deadline = membership.stage, membership.deadline
    made.receive(other, message)
    assert (membership.stage, membership.deadline) == (stage, deadline)


async def test_what_a_node_does_not_read_is_bounded() -> None:
    made, membership, other = coordinator()
    refused = pb.ToCoordinator(enter=pb.Enter(rank=5, world_size=1))
    for _ in range(MOST_UNREAD + 2):
        made.receive(other, refused)
    assert other.outbox.qsize() == 1, "only that its part has ended"
    assert await other.outbox.get() is None
    assert membership.stage is Stage.RUNNING, "others go on"


class Scripted:
    """A membership that has these actions for `opened`, and a state to publish when a node goes."""

    stage, deadline, epoch = Stage.RUNNING, None, 1

    def __init__(self, opened: list[Action], gone: GroupState) -> None:
        self._opened, self._gone = opened, gone

    def attach(self, *_: object) -> None: ...

    def has_part(self, _: str) -> bool:
        return True

    def opened(self, *_: object) -> list[Action]:
        return self._opened

    def detach(self, *_: object) -> list[Action]:
        return [Publish(self._gone)]


async def test_what_follows_from_a_node_that_does_not_read_is_published_last() -> None:
    earlier, later = (GroupState(phase, "", 1, 2, ()) for phase in ("Ready", "Failed"))
    actions: list[Action] = [Send("b", pb.ToMember()), Publish(earlier)]
    published: list[GroupState] = []
    membership = cast(Membership, Scripted(actions, later))
    made = Coordinator(membership, published.append, lambda: None)
    own, other = made.attach("a", "a:1", 0), made.attach("b", "b:1", 0)
    for _ in range(MOST_UNREAD):
        other.outbox.put_nowait(pb.ToMember())
    made.receive(own, pb.ToCoordinator(opened=pb.Opened(epoch=1)))
    await asyncio.sleep(0.01)
    assert published == [earlier, later]


def test_ranks_that_are_said_often_are_lost_once() -> None:
    made = Departures({rank: "ab"[rank % 2] for rank in range(4)})
    assert made.lose([3, 1] * 100_000) == [3, 1]


def plan(change: Callable[[pb.Open], None] = lambda _: None) -> pb.Open:
    out = pb.Open(epoch=1, nodes=["a", "b"], uid=bytes(16))
    for rank in range(2):
        out.ranks.add(rank=rank, node=rank, region_bytes=4096, blob=b"blob")
    change(out)
    return out


def here(world_size: int = 2) -> dict[int, LocalRank]:
    return {0: LocalRank(0, world_size, "ns/p", 1, 1, lambda *_: None, lambda: None)}


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: setattr(plan, "epoch", 0),
        lambda plan: setattr(plan, "epoch", MAX_EPOCH + 1),
        lambda plan: setattr(plan, "leader_rank", 2),
        lambda plan: setattr(plan, "uid", b"short"),
        lambda plan: setattr(plan.ranks[1], "node", 2),
        lambda plan: setattr(plan.ranks[1], "rank", 0),
        lambda plan: setattr(plan.ranks[0], "node", 1),  # none is left here
        lambda plan: setattr(plan.ranks[1], "region_bytes", limits.REGION_SPACE_BYTES + 1),
        lambda plan: setattr(plan.ranks[1], "blob", b"x" * (MAX_BLOB + 1)),
        lambda plan: plan.nodes.append("a"),
        lambda plan: plan.ranks.add(rank=2),  # the ranks here are of a world of 2
        lambda plan: plan.ClearField("ranks"),
    ],
)
def test_an_epoch_that_cannot_be_is_not_opened(change: Callable[[pb.Open], None]) -> None:
    assert fault_of_plan(plan(), "a", here()) is None
    assert fault_of_plan(plan(change), "a", here())


@pytest.mark.parametrize(("code", "text"), [("", ""), ("x" * 65, "x" * 5000), ("rank", "why")])
def test_a_refusal_by_another_agent_fits_a_session_message(code: str, text: str) -> None:
    reply = Refusal(code, text).reply()
    assert messages.decode_reply(messages.encode(reply)) == reply
    assert (reply.code == code) == (code == "rank")
