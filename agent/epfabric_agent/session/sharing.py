"""A session's part in memory that ranks of a node share: keeps descriptors, hands them to peers.

Used by session.conversation. Whoever asks is known by its socket, as everywhere; it gets what a
rank of its own epoch on this node offers, and nothing else.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat

from epfabric import messages

from epfabric_agent.groups.local_rank import LocalRank, Refusal, Stage
from epfabric_agent.groups.part import Part
from epfabric_agent.groups.peer_memory import Nvlink, Offered
from epfabric_agent.pods import Pod
from epfabric_agent.session.packets import Connection, Packet
from epfabric_agent.session.quota import Quota, QuotaError

MAX_OFFERS = 64
LOOK_S = 0.2  # for what wakes nobody: an epoch that fails
_FIT = (stat.S_IFCHR, stat.S_IFREG, 0)  # a device, a file, what has no inode of its own


class Sharing:
    def __init__(
        self, connection: Connection, pod: Pod, quota: Quota, part: Part, local: LocalRank
    ) -> None:
        self._connection = connection
        self._pod = pod
        self._quota = quota
        self._part = part
        self._local = local
        self._held = 0
        local.offers.let_go = self._let_go

    async def offer(self, request: messages.Offer, packet: Packet) -> messages.RegisterReply:
        """Keeps the packet's descriptor. Raises Refusal."""
        local = self._local
        if local.stage not in (Stage.OPEN, Stage.JOINED):
            raise Refusal("bad-state", f"this session is {local.stage.value}: it offers no memory")
        if len(packet.fds) != 1:
            raise Refusal("bad-fd", f"register carries one descriptor, not {len(packet.fds)} files")
        if request.name in local.offers:
            raise Refusal("bad-state", f"this session offers {request.name!r} already")
        if self._held >= MAX_OFFERS:
            raise Refusal("quota", f"a session offers at most {MAX_OFFERS} descriptors at once")
        try:
            self._quota.take_descriptor(self._pod)
        except QuotaError as error:
            raise Refusal(error.code, str(error)) from error
        self._held += 1  # until it is taken back, or the session ends
        fd = packet.fds[0]
        try:
            kept = await self._connection.keep(fd, check)
        except (ValueError, OSError) as error:
            self._give_back(1)
            raise Refusal("bad-fd", str(error)) from error
        offered = Offered(kept, request.bytes, request.note)
        if local.offers.over:
            self._let_go([offered])
            raise Refusal("group-failed", local.failure or "this session has ended")
        local.offers.add(request.name, offered)
        return messages.RegisterReply(region=0, offset=0, bytes=request.bytes)

    def take_back(self, request: messages.Unregister) -> messages.UnregisterReply:
        if request.name not in self._local.offers:
            raise Refusal("not-offered", f"this session offers no memory named {request.name!r}")
        self._local.offers.drop(request.name)
        return messages.UnregisterReply()

    async def answer(self, request: messages.PeerMemory) -> None:
        """Sends what the peer offers, once it does; bounded by the request. Raises Refusal."""
        if self._connection.unread():
            # Each answer may hold a descriptor in flight, of which the machine bounds the number.
            raise Refusal("bad-state", "an answer before this one has not been read yet")
        loop = asyncio.get_running_loop()
        end = loop.time() + request.wait_ms / 1000
        while True:
            other = self._peer(request.rank)
            offered = other.offers.get(request.name)
            if offered is not None:
                break
            left_s = end - loop.time()
            if left_s <= 0 or other.offers.over:
                raise Refusal(
                    "not-offered",
                    f"rank {request.rank} ({other.pod}) offers no memory named {request.name!r}",
                )
            await other.offers.change(min(left_s, LOOK_S))
        # No pause between the look and this: else the descriptor might be another one by now.
        reply = messages.PeerMemoryReply(bytes=offered.bytes, note=offered.note)
        self._connection.send(reply, (offered.fd,))

    def tried(self, request: messages.Tried) -> messages.TriedReply:
        local = self._local
        waited_for = local.tried is not None and not local.tried.done()
        if not waited_for and local.stage is not Stage.JOINED:
            raise Refusal("bad-state", "nothing is to be tried now")
        local.say(Nvlink(request.nvlink, plain(request.reason)))
        self._part.changed()
        return messages.TriedReply()

    def end(self) -> None:
        """Gives everything back; nothing is offered from then on (idempotent)."""
        self._local.offers.end()
        self._give_back(self._held)  # also for what was cut off while it was being kept
        self._local.say(None)

    def _peer(self, rank: int) -> LocalRank:
        """The rank of this one's epoch on this node. Raises Refusal."""
        local, epoch = self._local, self._part.epoch
        if local.failure:
            raise Refusal("group-failed", local.failure)
        if epoch is None or epoch.ranks.get(local.rank) is not local:
            raise Refusal("bad-state", "memory of other ranks is there once the group is open")
        other = epoch.ranks.get(rank)
        if other is None:
            where = epoch.whereabouts([rank])
            raise Refusal("not-offered", f"it is not on node {epoch.node}, or gone: {where}")
        return other

    def _let_go(self, gone: list[Offered]) -> None:
        self._connection.release(tuple(offered.fd for offered in gone))
        self._give_back(len(gone))

    def _give_back(self, count: int) -> None:
        self._held -= count
        self._quota.give_back_descriptors(self._pod, count)


def plain(text: str) -> str:
    """A pod's text as a log line and a status can hold it: printable ASCII, else a question mark.

    An apply patch is YAML, which knows no surrogates: one of them would keep the whole status from
    being written.
    """
    return "".join(one if one.isascii() and one.isprintable() else "?" for one in text)


def check(fd: int) -> None:
    """Raises ValueError for what is seen to be no memory: a folder, a socket, a pipe, a path.

    What passes may be another thing all the same (docs/security.md): only its importer can tell.
    """
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind not in _FIT or fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH:
        raise ValueError(
            "the descriptor is a folder, a socket, a pipe, a block device or a path: register what "
            "cuMemExportToShareableHandle gave"
        )
