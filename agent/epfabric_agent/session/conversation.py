"""One connection of a pod from its hello to its end; started by session.sockets for each.

Requests are served one after the other, but the connection is read all the time: its end ends the
session at once, also while a join waits. What the pod sends too fast is left in the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Coroutine
from functools import partial
from typing import Any

from epfabric import messages

from epfabric_agent.groups.local_rank import LocalRank, Refusal, Stage
from epfabric_agent.groups.part import DRAIN_MS, LEAVE_S, Part
from epfabric_agent.groups.part_epoch import MASK_S
from epfabric_agent.pods import Pod
from epfabric_agent.session.opening import open_session
from epfabric_agent.session.packets import Closed, Connection, Orphaned, Packet
from epfabric_agent.session.quota import Grant, QuotaError
from epfabric_agent.session.rate import Rate
from epfabric_agent.session.services import Current, Services
from epfabric_agent.session.sharing import Sharing

HELLO_S = 30.0
REQUESTS_PER_S = 50.0
REQUEST_BURST = 200
HELLO_COUNT = 5  # to make a session costs some 10 ms of a CPU
MAX_REGIONS = 256
# The longest leave: one that is cut off would never be ended.
LONG_S = DRAIN_MS / 1000 + LEAVE_S + MASK_S + 5.0
_log = logging.getLogger(__name__)


class Conversation:
    def __init__(self, connection: Connection, pod: Pod, current: Current, pod_rate: Rate) -> None:
        """`pod_rate`: how often all connections of the pod together may ask."""
        self._connection = connection
        self._pod = pod
        self._current = current
        self._services: Services | None = None  # those of its session
        self._rate = Rate(REQUESTS_PER_S, REQUEST_BURST)
        self._pod_rate = pod_rate
        self._seat: tuple[Part, LocalRank] | None = None
        self._grants: list[Grant] = []
        self._sharing: Sharing | None = None
        self._long: asyncio.Task[Any] | None = None  # join or leave
        self._fetch: asyncio.Task[Any] | None = None  # a peer's memory
        self._left = False

    async def run(self) -> None:
        """Serves until the pod or the agent ends it; never raises for what a pod does."""
        why = "its session ended without leave (the process ended, or closed its socket)"
        try:
            async with asyncio.timeout(HELLO_S) as limit:
                while not self._left:
                    with await self._connection.receive() as packet:
                        await self._pace(self._rate, self._pod_rate)
                        await self._serve(packet)
                    if self._seat is not None:
                        limit.reschedule(None)
        except Orphaned:
            why = "its process ended (another process still holds its socket)"
        except (Closed, TimeoutError):
            pass
        except asyncio.CancelledError:
            why = "its agent ended"
            raise
        except Exception:
            _log.exception("a session of %s failed", self._pod.label)
            why = "the agent failed on its session; see the agent's log"
        finally:
            await asyncio.shield(self._end(why))

    async def _pace(self, *rates: Rate, count: int = 1) -> None:
        now = asyncio.get_running_loop().time()
        wait_s = max(rate.take(now, count) for rate in rates)
        if wait_s:
            await asyncio.sleep(wait_s)

    async def _serve(self, packet: Packet) -> None:
        try:
            if packet.fault:
                raise messages.MessageError(packet.fault)
            request = messages.decode_request(packet.data)
            self._check_turn(request)
            if isinstance(request, messages.Hello):
                await self._hello(request)
            elif isinstance(request, messages.Register):
                self._connection.send(await self._register(request, packet))
            elif isinstance(request, messages.Offer):
                self._connection.send(await self._shares().offer(request, packet))
            elif isinstance(request, messages.Unregister):
                self._connection.send(self._shares().take_back(request))
            elif isinstance(request, messages.Tried):
                self._connection.send(self._shares().tried(request))
            elif isinstance(request, messages.PeerMemory):
                self._fetch = asyncio.create_task(self._answer(self._shares().answer(request)))
            elif isinstance(request, messages.Join):
                part, local = self._seated()
                self._long = asyncio.create_task(self._answer(part.join(local)))
            else:
                part, local = self._seated()
                self._long = asyncio.create_task(self._leave(part, local))
        except messages.OtherVersion as error:
            self._connection.send(self._refuse(Refusal("abi", str(error))))
        except messages.MessageError as error:
            self._connection.send(self._refuse(Refusal(messages.BAD_REQUEST, str(error))))
        except Refusal as refusal:
            self._connection.send(self._refuse(refusal))

    def _check_turn(self, request: messages.Request) -> None:
        """One at a time, but what a rank tries while its join waits. Raises Refusal."""
        trial = isinstance(request, (messages.PeerMemory, messages.Tried))
        for task in (self._fetch, None if trial else self._long):
            if task is not None and not task.done():
                raise Refusal("bad-state", "the request before this one is not answered yet")

    def _refuse(self, refusal: Refusal) -> messages.ErrorReply:
        reply = refusal.reply()
        self._current.hub.refused(self._pod, reply.code, reply.message)
        return reply

    async def _hello(self, hello: messages.Hello) -> None:
        from epfabric_agent._native import NativeError

        if self._seat is not None:
            raise Refusal("bad-state", "this connection has said hello already")
        await self._pace(self._pod_rate, count=HELLO_COUNT)
        opened = await open_session(hello, self._pod, self._connection, self._current)
        part, local, self._services = opened.part, opened.local, opened.services
        self._seat = part, local
        self._sharing = Sharing(self._connection, self._pod, opened.services.quota, part, local)
        try:
            fds = local.session.share()
        except NativeError as error:  # ended already
            raise Refusal("group-failed", local.failure or str(error)) from error
        try:
            self._connection.send(opened.reply, fds)
        finally:
            for fd in fds:
                os.close(fd)
        gpu = f", on {hello.gpu}" if hello.gpu else ""
        _log.info("rank %d of %s: session of %s%s", local.rank, part.group, local.pod, gpu)

    async def _register(self, request: messages.Register, packet: Packet) -> messages.RegisterReply:
        from epfabric_agent._native import NativeError

        _, local = self._seated()
        assert self._services is not None
        if local.stage is not Stage.OPEN:
            raise Refusal("bad-state", "register comes before join")
        code, host = f"bad-{request.kind}", request.kind == "memfd"
        if len(packet.fds) != 1:
            raise Refusal(code, f"register carries one {request.kind}, not {len(packet.fds)} files")
        if len(self._grants) >= MAX_REGIONS:
            raise Refusal("quota", f"a session has at most {MAX_REGIONS} regions")
        try:
            quota = self._services.quota
            grant = (
                quota.grant(self._pod, request.bytes)
                if host
                else quota.grant_device_memory(self._pod)
            )
        except QuotaError as error:
            raise Refusal(error.code, str(error)) from error
        self._grants.append(grant)  # until the session is closed, also where this is cut off
        kind = local.session.register_memfd if host else local.session.register_dmabuf
        register = partial(kind, packet.fds[0], request.bytes)
        try:
            region = await self._connection.thread.run(register)
        except (NativeError, MemoryError) as error:
            self._grants.remove(grant)
            self._services.quota.release(grant)
            text = str(error) or "the agent has no memory left to map it"
            raise Refusal(code, text) from error
        return messages.RegisterReply(
            region=region.region, offset=region.offset, bytes=region.bytes
        )

    async def _answer(self, work: Coroutine[Any, Any, messages.Reply | None]) -> bool:
        """None: it has sent its answer."""
        try:
            reply = await work
        except Closed:
            return False
        except Refusal as refusal:
            reply = self._refuse(refusal)
        except Exception:
            _log.exception("a request failed")
            why = "the agent failed; its log on the node says why"
            reply = self._refuse(Refusal("internal", why))
        if reply is not None:
            with contextlib.suppress(Closed):
                self._connection.send(reply)
        return isinstance(reply, messages.LeaveReply)

    async def _leave(self, part: Part, local: LocalRank) -> None:
        if await self._answer(part.leave(local)):
            self._left = True
            self._connection.end()

    def _seated(self) -> tuple[Part, LocalRank]:
        if self._seat is None:
            raise Refusal("bad-state", "hello comes first")
        part, local = self._seat
        if local.failure:
            raise Refusal("group-failed", local.failure)
        return part, local

    def _shares(self) -> Sharing:
        self._seated()
        assert self._sharing is not None
        return self._sharing

    async def _end(self, why: str) -> None:
        """Gives back all that the session held; bounded by the core's own bounds."""
        if self._fetch is not None:
            self._fetch.cancel()
        if self._sharing is not None:
            self._sharing.end()
        try:
            if self._seat is not None:
                part, local = self._seat
                await part.lost(local, why)
            if self._long is not None:
                await asyncio.wait([self._long], timeout=LONG_S)
                self._long.cancel()
        finally:
            for grant in self._grants:
                if self._services is not None:
                    self._services.quota.release(grant)
            await self._connection.close()
