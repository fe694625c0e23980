"""Calls between agents over real mutual TLS: whoever is not who it says is refused."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import grpc.aio
import pytest
from epfabric.versions import Span
from epfabric_agent.groups.bounds import MAX_BLOB
from epfabric_agent.groups.coordinator import Coordinator
from epfabric_agent.groups.membership import Membership
from epfabric_agent.groups.state import Limits
from epfabric_agent.peers.channels import MAX_REQUEST_BYTES, client_credentials, client_options
from epfabric_agent.peers.client import Agent, PeerClient
from epfabric_agent.peers.link import LinkBroken, NotCoordinator, OtherVersion
from epfabric_agent.peers.server import UNREAD_S, PeerServer
from epfabric_agent.peers.versions import SPOKEN
from epfabric_agent.pki import authority
from epfabric_agent.pki.identity import Credentials, NodeIdentity
from epfabric_agent.proto import peer_pb2 as pb
from epfabric_agent.proto import peer_pb2_grpc

ADDRESS = "127.0.6.1"
GROUP = "ns/train"
RANKS = 300


@dataclass
class Served:
    endpoint: str
    folder: Path
    groups: dict[str, Coordinator]

    def coordinator(self, group: str) -> Coordinator | None:
        return self.groups.get(group)

    def credentials(self, node: str, fabric: str = "moe") -> Credentials:
        identity = NodeIdentity(node, fabric, ADDRESS)
        authority.issue(self.folder, identity, 1, self.folder)
        return authority.load(self.folder, node)

    async def locate(self, own: Credentials, caller: pb.Caller) -> pb.LocateReply:
        options = client_options("served.moe.agents.epfabric.io")
        async with grpc.aio.secure_channel(
            self.endpoint, client_credentials(own), options=options
        ) as channel:
            stub = peer_pb2_grpc.PeerStub(channel)
            reply: pb.LocateReply = await stub.Locate(
                pb.LocateRequest(caller=caller, group=GROUP), timeout=10
            )
            return reply

    def client(self, node: str, spoken: Span = SPOKEN) -> PeerClient:
        own = self.credentials(node)
        return PeerClient(NodeIdentity(node, "moe", ADDRESS), lambda: own, spoken)


@asynccontextmanager
async def served(
    folder: Path, spoken: Span = SPOKEN, unread_s: float = UNREAD_S
) -> AsyncIterator[Served]:
    authority.make_authority(folder, 1)
    made = Served("", folder, {})
    own = made.credentials("served")
    server = PeerServer("served", "moe", made, lambda: own, spoken, unread_s)
    await server.start(ADDRESS, 0)
    made.endpoint = f"{ADDRESS}:{server.port}"
    made.groups[GROUP] = Coordinator(
        Membership(GROUP, 0, Limits(join_s=30.0), bytes(16)), lambda state: None, lambda: None
    )
    try:
        yield made
    finally:
        await server.stop()


async def test_an_agent_with_its_own_name_is_answered(tmp_path: Path) -> None:
    async with served(tmp_path / "pki") as there:
        reply = await there.locate(there.credentials("n1"), there.client("n1").caller)
        assert reply.coordinating


@pytest.mark.parametrize(
    ("certified", "fabric", "claimed"),
    [("n1", "moe", pb.Caller(node="n2", fabric="moe")),
     ("n1", "moe", pb.Caller(node="n1", fabric="other")),
     ("n1", "other", pb.Caller(node="n1", fabric="moe"))],
)  # fmt: skip
async def test_a_certificate_of_another_node_or_fabric_is_refused(
    tmp_path: Path, certified: str, fabric: str, claimed: pb.Caller
) -> None:
    async with served(tmp_path / "pki") as there:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await there.locate(there.credentials(certified, fabric), claimed)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_stream_of_a_false_node_is_refused_before_it_takes_part(tmp_path: Path) -> None:
    async with served(tmp_path / "pki") as there:
        own = there.credentials("n1")
        liar = PeerClient(NodeIdentity("n2", "moe", ADDRESS), lambda: own)
        link = await liar.attend(Agent("served", there.endpoint), GROUP, "x:1", 0)
        with pytest.raises(LinkBroken, match="permission denied"):
            await anext(link.messages())
        await link.close()


async def test_a_node_that_does_not_read_holds_up_its_group_for_a_while_only(
    tmp_path: Path,
) -> None:
    """Its agent runs, so that gRPC answers pings: nothing else would ever part it."""
    async with served(tmp_path / "pki", unread_s=0.5) as there:
        coordinator = there.groups[GROUP]
        own = coordinator.attach("served", "x:1", 0)

        def enter(rank: int, world: int) -> pb.ToCoordinator:
            made = pb.Enter(rank=rank, world_size=world, pod=f"ns/p-{rank}", blob=bytes(MAX_BLOB))
            return pb.ToCoordinator(enter=made)

        for rank in range(RANKS - 1):
            coordinator.receive(own, enter(rank, RANKS))
        deaf = await there.client("n1").attend(Agent("served", there.endpoint), GROUP, "x:2", 0)
        deaf.send(enter(RANKS - 1, RANKS))
        async with asyncio.timeout(60):
            opening, failing = await own.outbox.get(), await own.outbox.get()
            assert opening is not None
            assert opening.open.ByteSize() > 8 << 20, "more than flow control lets through unread"
            assert failing is not None
            assert "did not read what it was told in 0.5 s" in failing.fail.reason
            coordinator.receive(own, enter(0, 1))
            again = await own.outbox.get()
            assert again is not None
            assert again.open.epoch == opening.open.epoch + 1, "the others go on without it"
            told = [message.WhichOneof("kind") async for message in deaf.messages()]
            assert told == ["open"], "once it reads it sees that its part has ended"
        await deaf.close()


async def test_a_node_that_says_too_much_at_once_is_cut_off(tmp_path: Path) -> None:
    async with served(tmp_path / "pki") as there:
        agent, client = Agent("served", there.endpoint), there.client("n1")
        link = await client.attend(agent, GROUP, "x" * 65, 0)
        with pytest.raises(LinkBroken, match="an endpoint has 1 to 64 characters"):
            await anext(link.messages())
        await link.close()
        link = await client.attend(agent, GROUP, "x:1", 0)
        enter = pb.Enter(rank=0, world_size=2, blob=bytes(MAX_REQUEST_BYTES))
        link.send(pb.ToCoordinator(enter=enter))
        with pytest.raises((LinkBroken, StopAsyncIteration)):
            await anext(link.messages())
        await link.close()
        assert there.groups[GROUP].epoch == 0, "nothing of it was taken"


async def test_a_stranger_to_the_authority_gets_no_connection(tmp_path: Path) -> None:
    async with served(tmp_path / "pki") as there:
        authority.make_authority(tmp_path / "other", 1)
        authority.issue(
            tmp_path / "other", NodeIdentity("n1", "moe", ADDRESS), 1, tmp_path / "other"
        )
        foreign = authority.load(tmp_path / "other", "n1")
        for own in (foreign, replace(foreign, ca=there.credentials("n9").ca)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await there.locate(own, pb.Caller(node="n1", fabric="moe"))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_that_is_another_node_is_not_talked_to(tmp_path: Path) -> None:
    async with served(tmp_path / "pki") as there:
        assert await there.client("n1").coordinates(Agent("served", there.endpoint), GROUP)
        assert not await there.client("n1").coordinates(Agent("imposter", there.endpoint), GROUP)


async def test_who_does_not_coordinate_says_so(tmp_path: Path) -> None:
    async with served(tmp_path / "pki") as there:
        link = await there.client("n1").attend(
            Agent("served", there.endpoint), "ns/unknown", "x:1", 0
        )
        with pytest.raises(NotCoordinator):
            await anext(link.messages())
        await link.close()


async def test_a_link_that_is_closed_while_it_is_read_closes_its_socket(tmp_path: Path) -> None:
    async with served(tmp_path / "pki") as there:

        async def once() -> None:
            link = await there.client("n1").attend(Agent("served", there.endpoint), GROUP, "x:1", 0)
            enter = pb.Enter(rank=5, world_size=2, pod="ns/p", region_bytes=0, blob=b"")
            link.send(pb.ToCoordinator(enter=enter))
            async with contextlib.aclosing(link.messages()) as said:
                async for _ in said:
                    break
            await link.close()

        await once()
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        gc.disable()  # a socket must not wait for that
        try:
            for _ in range(3):
                await once()
            async with asyncio.timeout(10):
                while len(os.listdir("/proc/self/fd")) > before:
                    await asyncio.sleep(0.05)
        finally:
            gc.enable()


async def test_a_stream_carries_a_refusal_and_ends_with_its_client(tmp_path: Path) -> None:
    async with served(tmp_path / "pki") as there:
        link = await there.client("n1").attend(Agent("served", there.endpoint), GROUP, "x:1", 0)
        enter = pb.Enter(rank=5, world_size=2, pod="ns/p", region_bytes=0, blob=b"")
        link.send(pb.ToCoordinator(enter=enter))
        message = await asyncio.wait_for(anext(link.messages()), 20)
        assert message.refused.code == "rank"
        await link.close()


@pytest.mark.parametrize(
    ("spoken", "fits"), [(Span(1, 1), True), (Span(1, 2), True), (Span(2, 3), False)]
)
async def test_agents_of_other_versions_meet_or_are_told_both(
    tmp_path: Path, spoken: Span, fits: bool
) -> None:
    """Either may be the newer one: the one that is asked knows what both speak."""
    for name, server, client in (("older", SPOKEN, spoken), ("newer", spoken, SPOKEN)):
        async with served(tmp_path / name, server) as there:
            other = there.client("n1", client)
            agent = Agent("served", there.endpoint)
            assert not await other.coordinates(agent, "another/group")
            if fits:
                assert await other.coordinates(agent, GROUP)
            else:
                with pytest.raises(OtherVersion, match=f"n1 speaks {client}"):
                    await other.coordinates(agent, GROUP)
            link = await other.attend(agent, GROUP, "x:1", 0)
            enter = pb.Enter(rank=5, world_size=2, pod="ns/p", region_bytes=0, blob=b"")
            if fits:
                link.send(pb.ToCoordinator(enter=enter))
                message = await asyncio.wait_for(anext(link.messages()), 20)
                assert message.refused.code == "rank"
            else:
                with pytest.raises(OtherVersion) as caught:
                    await anext(link.messages())
                for word in (f"n1 speaks {client}", f"served {server}", "both are updated"):
                    assert word in str(caught.value)
            await link.close()


async def test_an_agent_that_names_no_version_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path / "pki") as there:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await there.locate(there.credentials("n1"), pb.Caller(node="n1", fabric="moe"))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
