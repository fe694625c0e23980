"""Calls to other agents over mutual TLS; every call has a bound. Used by groups and discovery."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass

import grpc
import grpc.aio
from epfabric.versions import Span
from epfabric_crds.names import agent_dns_name

from epfabric_agent.peers.channels import client_credentials, client_options
from epfabric_agent.peers.link import LinkBroken, NotCoordinator, OtherVersion
from epfabric_agent.peers.versions import SPOKEN
from epfabric_agent.pki.identity import Credentials, NodeIdentity, PkiError
from epfabric_agent.proto import peer_pb2 as pb
from epfabric_agent.proto import peer_pb2_grpc

CALL_S = 3.0
CONNECT_S = 5.0
CLOSE_S = 1.0


@dataclass(frozen=True)
class Agent:
    """Another agent and where it listens (ip:port)."""

    node: str
    endpoint: str


class PeerClient:
    """Opens connections to agents as this one."""

    def __init__(
        self, own: NodeIdentity, credentials: Callable[[], Credentials], spoken: Span = SPOKEN
    ) -> None:
        self._own = own
        self._spoken = spoken
        self._credentials = credentials

    @property
    def caller(self) -> pb.Caller:
        return pb.Caller(
            node=self._own.node,
            fabric=self._own.fabric,
            oldest=self._spoken.oldest,
            newest=self._spoken.newest,
        )

    async def coordinates(self, agent: Agent, group: str) -> bool:
        """Whether `agent` coordinates `group`; False also where it does not answer in time.

        Raises OtherVersion where it does and speaks none of this one's versions.
        """
        async with self._channel(agent) as channel:
            stub = peer_pb2_grpc.PeerStub(channel)
            request = pb.LocateRequest(caller=self.caller, group=group)
            try:
                reply = await stub.Locate(request, timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    raise OtherVersion(error.details()) from None
                return False
            return bool(reply.coordinating)

    async def attend(self, agent: Agent, group: str, endpoint: str, epoch: int) -> RemoteLink:
        """Takes part in a group at its coordinator. Raises LinkBroken."""
        try:
            channel = self._channel(agent)
        except PkiError as error:
            raise LinkBroken(str(error)) from error
        try:
            await asyncio.wait_for(channel.channel_ready(), CONNECT_S)
        except TimeoutError:
            await channel.close()
            raise LinkBroken(
                f"no connection to {agent.endpoint} in {CONNECT_S:g} s (is it up, and are both "
                "certificates of one authority?)"
            ) from None
        except BaseException:
            await channel.close()
            raise
        link = RemoteLink(agent.node, channel)
        attach = pb.Attach(caller=self.caller, group=group, endpoint=endpoint, last_epoch=epoch)
        link.send(pb.ToCoordinator(attach=attach))
        return link

    def _channel(self, agent: Agent) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(
            agent.endpoint,
            client_credentials(self._credentials()),
            options=client_options(agent_dns_name(agent.node, self._own.fabric)),
        )


class RemoteLink:
    """A stream to the coordinator's agent."""

    def __init__(self, node: str, channel: grpc.aio.Channel) -> None:
        self.node = node
        self._channel = channel
        self._out: asyncio.Queue[pb.ToCoordinator | None] = asyncio.Queue()
        self._call = peer_pb2_grpc.PeerStub(channel).Attend(self._requests())

    def send(self, message: pb.ToCoordinator) -> None:
        self._out.put_nowait(message)

    async def messages(self) -> AsyncGenerator[pb.ToMember, None]:
        # Not `async for`: gRPC's iterator and its call hold each other, and with them the socket,
        # until Python happens to collect cycles.
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                yield message
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise NotCoordinator(error.details()) from None
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise OtherVersion(error.details()) from None
            name = error.code().name.lower().replace("_", " ")
            raise LinkBroken(f"{name}: {error.details()}") from None

    async def close(self) -> None:
        self._out.put_nowait(None)
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError, TimeoutError):
            await asyncio.wait_for(self._call.code(), CLOSE_S)
        self._call.cancel()
        await self._channel.close()

    async def _requests(self) -> AsyncIterator[pb.ToCoordinator]:
        while (message := await self._out.get()) is not None:
            yield message
