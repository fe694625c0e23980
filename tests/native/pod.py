"""A pod's end of a session, for the native tests: pushes commands with plain stores."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from epfabric_agent import _native

WRITE, SIGNAL, ADD, CAS, DRAIN, BARRIER, CAS_SWAP = 1, 2, 3, 4, 5, 6, 7
LAP = 1 << 63
LIMIT_S = 60.0
REASONS = (
    "none",
    "bad-op",
    "reserved-flag",
    "unused-field",
    "rank-out-of-group",
    "rank-left",
    "source-out-of-region",
    "destination-out-of-region",
    "signal-out-of-range",
    "no-advance",
    "bad-drain",
    "half-cas",
    "unsupported",
)


def head(op: int, rank: int = 0, advance: int = 0, low: int = 0) -> int:
    return (op << 60) | (rank << 47) | (advance << 32) | low


def write(
    rank: int, src: int, dst: int, nbytes: int, signal: int = 0, advance: int = 0
) -> tuple[int, int]:
    """Offsets and sizes in bytes, multiples of 16."""
    return (
        head(WRITE, rank, advance, src // 16),
        (signal << 52) | ((nbytes // 16 - 1) << 32) | (dst // 16),
    )


def signal(rank: int, index: int, advance: int) -> tuple[int, int]:
    return head(SIGNAL, rank, advance), index << 52


def drain(until: int) -> tuple[int, int]:
    return head(DRAIN, low=until & 0xFFFFFFFF), 0


def barrier() -> tuple[int, int]:
    return head(BARRIER), 0


def add(rank: int, offset: int, value: int) -> tuple[int, int]:
    """Offset in bytes, a multiple of 8; value below 2^64."""
    return head(ADD, rank) | value >> 63 << 33 | offset // 8, value & ~LAP


def cas(rank: int, offset: int, expected: int, value: int) -> list[tuple[int, int]]:
    """Both slots."""
    first = head(CAS, rank) | expected >> 63 << 33 | offset // 8, expected & ~LAP
    return [first, (head(CAS_SWAP) | value >> 63 << 33, value & ~LAP)]


def make_memfd(nbytes: int, fill: bool = True) -> int:
    fd = os.memfd_create("region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    if fill:
        os.pwrite(fd, bytes(nbytes), 0)
    return fd


def until(condition: object, what: str, limit_s: float = LIMIT_S) -> None:
    """Waits until condition() is true; AssertionError after the bound."""
    assert callable(condition)
    end = time.monotonic() + limit_s
    nap = 0.00005
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {limit_s} s for {what}")
        time.sleep(nap)
        nap = min(nap * 1.5, 0.002)


@dataclass
class Pod:
    """One rank: its session, its mappings of the two segments, its regions."""

    session: _native.Session
    rings: int
    depth: int
    signals: int
    world: int
    regions: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.at = _native.layout(self.rings, self.depth, self.signals, self.world)
        pod_fd, agent_fd = self.session.share()
        self.pod_map = mmap.mmap(pod_fd, self.at["pod_bytes"])
        self.agent_map = mmap.mmap(agent_fd, self.at["agent_bytes"], prot=mmap.PROT_READ)
        os.close(pod_fd)
        os.close(agent_fd)
        pod = np.frombuffer(self.pod_map, dtype=np.uint64)
        self.agent = np.frombuffer(self.agent_map, dtype=np.uint64)
        slots = self.at["slots"] // 8
        self.slots = pod[slots : slots + self.rings * self.depth * 2].reshape(
            self.rings, self.depth, 2
        )
        self.head = [0] * self.rings

    @property
    def rank(self) -> int:
        return self.session.rank

    def register(self, nbytes: int) -> np.ndarray:
        fd = make_memfd(nbytes)
        view = np.frombuffer(mmap.mmap(fd, nbytes), dtype=np.uint8)
        self.session.register_memfd(fd, nbytes)
        os.close(fd)
        self.regions.append(view)
        return view

    def counter(self, ring: int, name: str) -> int:
        offset = (
            self.at["counters"] + ring * self.at["ring_counters_bytes"] + self.at[f"ring_{name}"]
        )
        return int(self.agent[offset // 8])

    def push(self, ring: int, command: tuple[int, int]) -> int:
        """The command's ticket; waits while the ring is full."""
        ticket = self.head[ring]
        until(lambda: ticket - self.counter(ring, "tail") < self.depth, f"room in ring {ring}")
        lap = 0 if ticket & self.depth else LAP
        slot = self.slots[ring, ticket % self.depth]
        slot[0] = command[0] | lap
        slot[1] = command[1] | lap
        self.head[ring] = ticket + 1
        return ticket

    def wait(self, ring: int, ticket: int, limit_s: float = LIMIT_S) -> None:
        until(
            lambda: self.counter(ring, "completed") > ticket,
            f"ticket {ticket} of ring {ring} of rank {self.rank}",
            limit_s,
        )

    def run(self, ring: int, command: tuple[int, int]) -> None:
        self.wait(ring, self.push(ring, command))

    def signal_value(self, source: int, ring: int, index: int) -> int:
        word = (source * self.rings + ring) * self.signals + index
        return int(self.agent[self.at["signals"] // 8 + word])

    def result(self, ring: int, ticket: int) -> int | None:
        """What the word of a completed ATOMIC held before; None where it had no effect."""
        at = self.at["results"] // 8 + (ring * self.depth + ticket % self.depth) * 2
        old, done = (int(word) for word in self.agent[at : at + 2])
        return old if done == ticket + 1 else None

    def masked(self) -> list[int]:
        words = self.agent[self.at["mask"] // 8 :][: (self.world + 63) // 64]
        return [rank for rank in range(self.world) if int(words[rank // 64]) >> rank % 64 & 1]

    def aborted(self) -> bool:
        return int(self.agent[self.at["agent_abort"] // 8]) != 0


@dataclass
class Node:
    """One core and the pods of one group on it."""

    core: _native.Core
    ranks: list[int]
    group: int = 1
    pods: list[Pod] = field(default_factory=list)

    def open(
        self,
        world: int,
        rings: int,
        depth: int,
        signals: int,
        proxies: int,
        nbytes: int,
        inflight: int = 0,
    ) -> None:
        for rank in self.ranks:
            session = self.core.open_session(
                group=self.group,
                rank=rank,
                world=world,
                rings=rings,
                depth=depth,
                signals=signals,
                cpus=[-1] * proxies,
                max_inflight=inflight,
            )
            pod = Pod(session, rings, depth, signals, world)
            if nbytes:
                pod.register(nbytes)
            self.pods.append(pod)


class Group:
    """Nodes of one process, joined into one group over the named provider.

    `prepare` is called with each pod before the group opens. `beside` is a group whose cores this
    one, with the next number, shares; its owner closes them.
    """

    def __init__(
        self,
        nodes: list[list[int]],
        *,
        provider: str = "tcp;ofi_rxm",
        rings: int = 2,
        depth: int = 64,
        signals: int = 4,
        proxies: int | list[int] = 1,
        nbytes: int = 1 << 20,
        barrier_timeout_ms: int = 30000,
        epoch: int = 1,
        uid: bytes = b"",
        prepare: Callable[[Pod], None] = lambda pod: None,
        beside: Group | None = None,
        mask: bool = False,
        inflight: int = 0,
        **core: object,
    ) -> None:
        self.number: int = beside.number + 1 if beside else 1
        self._guest = beside is not None
        self.world = sum(len(ranks) for ranks in nodes)
        counts = proxies if isinstance(proxies, list) else [proxies] * len(nodes)
        self.nodes: list[Node] = [
            Node(
                beside.nodes[i].core
                if beside
                else _native.Core(address=f"127.0.1.{i + 1}", provider=provider, **core),  # type: ignore[arg-type]
                ranks,
                self.number,
            )
            for i, ranks in enumerate(nodes)
        ]
        for node, count in zip(self.nodes, counts, strict=True):
            node.open(self.world, rings, depth, signals, count, nbytes, inflight)
        self.pods = sorted(
            (pod for node in self.nodes for pod in node.pods), key=lambda pod: pod.rank
        )
        for pod in self.pods:
            prepare(pod)
        blobs = [pod.session.describe() for pod in self.pods]
        for i, node in enumerate(self.nodes):
            remote = [
                _native.RemoteRank(rank, j, blobs[rank])
                for j, ranks in enumerate(nodes)
                for rank in ranks
                if j != i
            ]
            node.core.open_epoch(
                self.number,
                epoch,
                [pod.session for pod in node.pods],
                remote,
                0,
                nodes,
                barrier_timeout_ms,
                mask,
                uid,
            )
        for node in self.nodes:
            node.core.start_epoch(self.number)

    def close(self) -> None:
        for node in self.nodes:
            node.core.close_epoch(self.number)
        for node in self.nodes:
            for pod in node.pods:
                pod.session.close()
            if not self._guest:
                node.core.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
