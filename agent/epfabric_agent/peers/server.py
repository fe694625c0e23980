"""The gRPC service of an agent for other agents; every call's certificate is checked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn, Protocol

import grpc
import grpc.aio
from epfabric.versions import Span

from epfabric_agent.groups.bounds import fault_of_attach
from epfabric_agent.groups.coordinator import Coordinator
from epfabric_agent.peers import versions
from epfabric_agent.peers.authorize import refusal
from epfabric_agent.peers.channels import SERVER_OPTIONS, server_credentials
from epfabric_agent.peers.versions import SPOKEN
from epfabric_agent.pki.identity import Credentials, PkiError
from epfabric_agent.proto import peer_pb2 as pb
from epfabric_agent.proto import peer_pb2_grpc

ATTACH_S = 5.0
UNREAD_S = 30.0
"""A node reads what it is told within; longer than a busy agent stands still."""
STOP_S, CUT_S = 1.0, 2.0

_log = logging.getLogger(__name__)


class Coordinators(Protocol):
    def coordinator(self, group: str) -> Coordinator | None:
        """The group's coordinator if it is here."""


class PeerService(peer_pb2_grpc.PeerServicer):
    def __init__(
        self,
        node: str,
        fabric: str,
        coordinators: Coordinators,
        spoken: Span,
        unread_s: float = UNREAD_S,
    ) -> None:
        self._node = node
        self._fabric = fabric
        self._coordinators = coordinators
        self._spoken = spoken
        self._unread_s = unread_s

    async def Locate(self, request: pb.LocateRequest, context: Any) -> pb.LocateReply:
        """An agent of another version is told so only by the one that it looks for."""
        await self._check_name(request.caller, context)
        found = self._coordinators.coordinator(request.group) is not None
        if found:
            await self._check_version(request.caller, context)
        return pb.LocateReply(coordinating=found)

    async def Attend(
        self, request_iterator: AsyncIterator[pb.ToCoordinator], context: Any
    ) -> AsyncIterator[pb.ToMember]:
        try:
            first = await asyncio.wait_for(anext(request_iterator), ATTACH_S)
        except (StopAsyncIteration, TimeoutError):
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, "attach comes first")
        attach = first.attach
        await self._check_name(attach.caller, context)
        await self._check_version(attach.caller, context)
        coordinator = self._coordinators.coordinator(attach.group)
        if coordinator is None:
            text = f"this agent does not coordinate group {attach.group}"
            await _abort(context, grpc.StatusCode.FAILED_PRECONDITION, text)
        if (fault := fault_of_attach(attach)) is not None:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, fault)
        seat = coordinator.attach(attach.caller.node, attach.endpoint, attach.last_epoch)
        reader = asyncio.create_task(_read(request_iterator, coordinator, seat))
        unread = f"it did not read what it was told in {self._unread_s:g} s"
        loop = asyncio.get_running_loop()
        try:
            while (message := await seat.outbox.get()) is not None:
                # gRPC waits in the yield while the node does not read, and lets nobody end the
                # call before: it stays until the node reads or its connection ends.
                limit = loop.call_later(self._unread_s, coordinator.cut_off, seat, unread)
                try:
                    yield message
                finally:
                    limit.cancel()
        finally:
            reader.cancel()
            coordinator.detach(seat, "its connection broke")

    async def _check_name(self, caller: pb.Caller, context: Any) -> None:
        names = context.auth_context().get("x509_subject_alternative_name", ())
        text = refusal(caller, [name.decode(errors="replace") for name in names], self._fabric)
        if text is not None:
            await _abort(context, grpc.StatusCode.PERMISSION_DENIED, text)

    async def _check_version(self, caller: pb.Caller, context: Any) -> None:
        text = versions.refusal(caller, self._node, self._spoken)
        if text is not None:
            await _abort(context, grpc.StatusCode.UNIMPLEMENTED, text)


async def _read(requests: AsyncIterator[pb.ToCoordinator], to: Coordinator, seat: Any) -> None:
    why = "its connection ended"
    try:
        async for message in requests:
            to.receive(seat, message)
    except Exception as error:
        _log.info("node %s: reading from its agent ended", seat.node, exc_info=True)
        why = f"its connection broke ({type(error).__name__})"
    to.detach(seat, why)
    seat.outbox.put_nowait(None)


async def _abort(context: Any, code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)
    raise AssertionError("abort() raises")


class PeerServer:
    """Listens on one address of the node; `port` is known after start()."""

    def __init__(
        self,
        node: str,
        fabric: str,
        coordinators: Coordinators,
        credentials: Callable[[], Credentials],
        spoken: Span = SPOKEN,
        unread_s: float = UNREAD_S,
    ) -> None:
        """`unread_s`: how long a node may leave unread what it is told."""
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        service = PeerService(node, fabric, coordinators, spoken, unread_s)
        peer_pb2_grpc.add_PeerServicer_to_server(service, self._server)
        self._credentials = credentials
        self.port = 0

    async def start(self, address: str, port: int) -> None:
        """Raises PkiError for credentials that do not work, OSError for a port that is taken."""
        host = f"[{address}]" if ":" in address else address
        try:
            credentials = server_credentials(self._credentials)
        except ValueError as error:
            raise PkiError(f"the agent's certificate cannot be used: {error}") from error
        try:
            self.port = self._server.add_secure_port(f"{host}:{port}", credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}:{port}: {error}") from error
        if self.port == 0:
            raise OSError(f"cannot listen on {address}:{port}: is another agent running there?")
        await self._server.start()

    async def stop(self) -> None:
        """Other agents' calls are cut off after STOP_S; what then still runs is left."""
        try:
            await asyncio.wait_for(self._server.stop(STOP_S), STOP_S + CUT_S)
        except TimeoutError:
            _log.warning("calls of other agents did not end in %g s", STOP_S + CUT_S)
