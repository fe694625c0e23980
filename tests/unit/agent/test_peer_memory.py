"""What an agent decides of memory that ranks share, without pods: waits, verdicts, quotas."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from epfabric import messages
from epfabric_agent.groups.local_rank import LocalRank, Stage
from epfabric_agent.groups.part import Part
from epfabric_agent.groups.peer_memory import (
    TRIAL,
    Nvlink,
    Offered,
    peer_memory,
    try_among,
    verdict,
)
from epfabric_agent.pods import Pod
from epfabric_agent.session.packets import Connection
from epfabric_agent.session.pod_thread import PodThread
from epfabric_agent.session.quota import (
    MAX_NODE_DESCRIPTORS,
    MAX_POD_DESCRIPTORS,
    Quota,
    QuotaError,
)
from epfabric_agent.session.sharing import Sharing
from epfabric_crds.definitions import problems

REACHED = Nvlink("posix_fd", "wrote")


def rank(number: int, nvlink: Nvlink | None = None) -> LocalRank:
    return LocalRank(
        rank=number,
        world_size=8,
        pod=f"ns/pod-{number}",
        handle=1,
        sample=number,
        on_failed=lambda *_: None,
        release=lambda: None,
        nvlink=nvlink,
    )


def pod(key: str, tenant: str = "", namespace: str = "ns") -> Pod:
    return Pod(key, namespace, key, "g", None, Path("/nonexistent"), tenant=tenant)


@pytest.mark.parametrize(
    ("found", "kind", "reason"),
    [
        ({}, "none", "no other rank"),
        ({4: REACHED}, "none", "no other rank"),
        ({4: None, 5: None}, "none", "offer no GPU memory"),
        ({4: REACHED, 5: REACHED, 7: REACHED}, "posix_fd", "ranks 4-5,7; rank 4: wrote"),
        (
            {4: REACHED, 5: REACHED, 7: Nvlink("posix_fd", "no IMEX"), 8: Nvlink("posix_fd", "x")},
            "posix_fd",
            "rank 4: wrote; rank 7: no IMEX",
        ),
        ({4: REACHED, 5: None}, "none", "rank 5"),
        (
            {4: REACHED, 6: Nvlink("none", "why"), 5: Nvlink("none", "first")},
            "none",
            "rank 5: first",
        ),
    ],
)
def test_memory_is_reached_where_every_rank_says_so(
    found: dict[int, Nvlink | None], kind: str, reason: str
) -> None:
    said = verdict(rank(number, nvlink) for number, nvlink in found.items())
    assert said.kind == kind
    assert reason in said.reason


async def test_a_rank_that_never_says_what_it_tried_is_not_waited_for_long() -> None:
    ranks = [rank(number) for number in range(4)]
    told: list[tuple[int, tuple[int, ...]]] = []
    for local in ranks[:3]:
        local.offers.add(TRIAL, Offered(-1, 4096, ""))
        local.on_trial = lambda others, local=local: told.append((local.rank, others))  # type: ignore[misc]
    trying = asyncio.create_task(try_among(ranks, limit_s=0.3))
    await asyncio.sleep(0)
    assert told == [(number, (0, 1, 2)) for number in range(3)]
    ranks[0].say(REACHED)
    ranks[1].say(None)  # its session ended
    assert not trying.done()
    await asyncio.wait_for(trying, 20.0)
    assert ranks[0].nvlink == REACHED
    assert [local.nvlink for local in (ranks[1], ranks[3])] == [None, None]
    assert ranks[2].nvlink is not None
    assert "did not say" in ranks[2].nvlink.reason
    assert all(local.tried is None for local in ranks)


def status_problems(ranks: dict[int, LocalRank]) -> list[str]:
    """Of a node's status that shows these ranks, as the definition has them."""
    part = SimpleNamespace(group="ns/g", epoch=SimpleNamespace(ranks=ranks))
    (shown,) = peer_memory([cast(Part, part)])
    assert shown.reason.isascii()
    assert shown.reason.isprintable()
    body = {"peerMemory": [{"group": shown.group, "nvlink": shown.nvlink, "reason": shown.reason}]}
    return problems("EPFabricNode", {"spec": {"fabric": "f", "nodeUid": "u"}, "status": body})


@pytest.mark.parametrize("text", ["\U0001f600", "\ud800", "a\nb", "a\x1b[2J", "\u202e", "é"])
def test_no_text_of_a_rank_keeps_its_node_s_status_from_being_written(text: str) -> None:
    ranks = {number: rank(number) for number in range(2)}
    for local in ranks.values():
        local.stage = Stage.JOINED
        part = cast(Part, SimpleNamespace(changed=lambda: None))
        sharing = Sharing(cast(Connection, None), pod("a"), Quota(0, 0), part, local)
        sharing.tried(messages.Tried(nvlink="none", reason=f"no {text} memory"))
    assert status_problems(ranks) == []
    assert ranks[0].nvlink is not None
    assert ranks[0].nvlink.reason.startswith("no ")
    assert ranks[0].nvlink.reason.endswith(" memory")


@pytest.mark.parametrize("nvlink", [REACHED, None])
def test_a_status_has_room_for_what_many_strided_ranks_found(nvlink: Nvlink | None) -> None:
    ranks = {number: rank(number, nvlink) for number in range(1000, 1600, 2)}
    ranks[0] = rank(0, REACHED)
    assert len(verdict(ranks.values()).reason) > 1024, "nothing has to be cut"
    assert status_problems(ranks) == []


async def test_offers_end_once_and_wake_who_waits() -> None:
    local = rank(0)
    closed: list[Offered] = []
    local.offers.let_go = closed.extend
    waiting = asyncio.create_task(local.offers.change(20.0))
    await asyncio.sleep(0)
    offered = [Offered(number, 4096, "") for number in range(3)]
    for number, one in enumerate(offered):
        local.offers.add(str(number), one)
    await asyncio.wait_for(waiting, 10.0)
    local.offers.drop("1")
    assert closed == [offered[1]]
    local.offers.end()
    local.offers.end()
    assert closed == [offered[1], offered[0], offered[2]]
    assert "0" not in local.offers
    await local.offers.change(0.01)  # bounded where nothing comes


def test_descriptors_are_counted_by_pod() -> None:
    quota = Quota(0, 0)
    for _ in range(MAX_POD_DESCRIPTORS):
        quota.take_descriptor(pod("a"))
    with pytest.raises(QuotaError, match=f"{MAX_POD_DESCRIPTORS} descriptors of a pod"):
        quota.take_descriptor(pod("a"))
    quota.take_descriptor(pod("b"))
    quota.give_back_descriptors(pod("a"), MAX_POD_DESCRIPTORS)
    quota.give_back_descriptors(pod("a"), 0)
    quota.take_descriptor(pod("a"))


def test_device_memory_takes_a_descriptor_until_it_is_released() -> None:
    quota = Quota(0, 0)
    grants = [quota.grant_device_memory(pod("a")) for _ in range(MAX_POD_DESCRIPTORS)]
    with pytest.raises(QuotaError, match=f"{MAX_POD_DESCRIPTORS} descriptors of a pod"):
        quota.grant_device_memory(pod("a"))
    quota.release(grants.pop())
    grants.append(quota.grant_device_memory(pod("a")))
    for grant in grants:
        quota.release(grant)
    for _ in range(MAX_POD_DESCRIPTORS):
        quota.take_descriptor(pod("a"))


def takes_all(quota: Quota, tenant: str, namespaces: int = 4) -> list[Pod]:
    """The pods, of several namespaces, that each took a descriptor until there was none for it."""
    took: list[Pod] = []
    for number in range(MAX_NODE_DESCRIPTORS):
        one = pod(f"{tenant}-{number % 100}", tenant, f"ns-{number % namespaces}")
        try:
            quota.take_descriptor(one)
        except QuotaError:
            break
        took.append(one)
    with pytest.raises(QuotaError, match="of one tenant half of what others leave") as refused:
        quota.take_descriptor(pod("one more", tenant, "ns-0"))
    assert refused.value.code == "tenant"
    return took


def test_no_tenant_takes_all_descriptors_of_a_node() -> None:
    quota = Quota(0, 0)
    first = takes_all(quota, "t1")
    assert len(first) == MAX_NODE_DESCRIPTORS // 2
    others = [takes_all(quota, f"t{number}") for number in range(2, 7)]
    assert all(others), "one was left nothing"
    assert sum(map(len, [first, *others])) <= MAX_NODE_DESCRIPTORS
    for one in first:
        quota.give_back_descriptors(one, 1)
    left = MAX_NODE_DESCRIPTORS - sum(map(len, others))
    assert len(takes_all(quota, "t1")) == left // 2


def test_pods_without_a_tenant_are_counted_by_namespace() -> None:
    quota = Quota(0, 0)
    assert len(takes_all(quota, "", namespaces=1)) == MAX_NODE_DESCRIPTORS // 2
    with pytest.raises(QuotaError, match="half"):
        quota.take_descriptor(pod("more", namespace="ns-0"))
    quota.take_descriptor(pod("other", namespace="another"))


async def test_a_pod_that_does_not_read_is_seen_to_hold_answers() -> None:
    """Descriptors in flight count against a bound of the machine: none follows an unread answer."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection = Connection(mine, PodThread())
    try:
        with theirs:
            assert not connection.unread()
            connection.send(messages.LeaveReply())
            connection.send(messages.LeaveReply())
            theirs.recv(1 << 16)
            assert connection.unread()
            theirs.recv(1 << 16)
            assert not connection.unread()
    finally:
        await connection.close()


def test_a_status_shows_groups_whose_epoch_is_open() -> None:
    epoch = SimpleNamespace(ranks={0: rank(0, REACHED), 1: rank(1, REACHED)})
    groups = {"ns/b": epoch, "ns/c": None, "ns/a": epoch}
    parts = [SimpleNamespace(group=group, epoch=found) for group, found in groups.items()]
    shown = peer_memory(cast(list[Part], parts))
    assert [(one.group, one.nvlink) for one in shown] == [
        ("ns/a", "posix_fd"),
        ("ns/b", "posix_fd"),
    ]
