"""Types of the C++ core (agent/native), for the agent. Every call that blocks has a bound."""

from collections.abc import Sequence
from typing import TypedDict, final

class NativeError(RuntimeError):
    """The core refused or could not do it; the message says what to do."""

def layout(rings: int, depth: int, signals: int, world: int) -> dict[str, int]:
    """Compiled layout of the two segments (slots, pod_bytes, counters, mask, results, signals,
    agent_bytes; plus sizeof and field offsets of the headers); NativeError where out of range."""

class Budget(TypedDict):
    """Of one session of a group whose ranks are all alike."""

    links: int  # connections of all its proxies
    queue_pairs: int  # of those on all NICs, and one for greetings of each proxy on each
    domains: int  # mailboxes in use at one proxy
    mailboxes: int  # that one proxy makes
    registrations: int  # pieces of memory, of all its proxies, on all NICs
    pinned_bytes: int  # of all its proxies, beside the regions
    queue_entries: int  # of one proxy
    segment_bytes: int  # shared with the pod
    signal_words: int

def budget(
    *,
    world: int,
    ranks_per_node: int,
    proxies: int,
    rings: int,
    depth: int,
    signals: int,
    regions: int,
    max_inflight: int,
    nics_per_gpu: int = 1,
) -> Budget:
    """NativeError where there is no such group."""

def rdma_limits() -> dict[str, dict[str, int]]:
    """By device that libibverbs lists: max_qp, max_mr_size and so on, as the device says now.
    NativeError where there is no libibverbs, or a device cannot be asked."""

def queue_memory(max_inflight: int) -> tuple[int, int, int]:
    """Bytes of the agent's memory that verbs' queues take at most: of an endpoint, of one that
    stands by, of a link."""

def nic_shortage(
    *,
    world: int,
    ranks_per_node: int,
    proxies: int,
    nics_per_gpu: int,
    regions: int,
    limits: dict[str, dict[str, int]],
) -> str:
    """Why a node's part of a group like that does not fit its devices, each with `limits` as
    rdma_limits() has them; empty where it does."""

@final
class RegionInfo:
    @property
    def region(self) -> int: ...
    @property
    def offset(self) -> int:
        """Bytes; the region's base in the rank's offset space (a multiple of 64 KiB)."""
    @property
    def bytes(self) -> int: ...

@final
class Event:
    @property
    def kind(self) -> str:
        """failed (transport, or a peer's bad record) or barrier_timeout: the epoch has failed
        and its abort words are set; call fail_epoch(). An epoch with mask=True goes on instead
        after lost (`rank` cannot be reached, or gave up) and barrier_timeout (who is missing:
        absent() of every node): call mask_ranks() or fail_epoch(). After moved (a link goes over
        another NIC now) any epoch goes on."""
    @property
    def group(self) -> int: ...
    @property
    def rank(self) -> int:
        """Rank that the event is about (the peer's, or the first missing one); -1 where unknown."""
    @property
    def ranks(self) -> list[int]:
        """All ranks that the event is about (missing ones of a barrier)."""
    @property
    def detail(self) -> str: ...
    @property
    def barrier(self) -> int:
        """Number of the barrier that timed out."""

class RingCount(TypedDict):
    ring: int
    taken: int
    completed: int
    depth: int  # slots taken but not completed yet
    ops: dict[str, int]  # completed by op: write, signal, drain, barrier, add, cas
    refused: dict[str, int]  # commands by reason, only those that occurred
    refused_slots: dict[str, int]  # the same in slots: a CAS has two
    masked: int  # completed without effect, since their destination is masked
    masked_slots: int
    joined: int  # WRITEs that went with the one before

class DestinationCount(TypedDict):
    rank: int
    node: int  # index in open_epoch's nodes
    transport: str  # "loopback", "libfabric" or "verbs"
    writes: int
    bytes: int
    signals: int

class ProxyCount(TypedDict):
    proxy: int
    cpu: int  # -1 = not pinned
    turns: int
    sleeps: int
    blocks: int
    inflight: int
    records_sent: int
    records_received: int
    mended: int  # connections that broke and were made anew
    replayed: int  # operations that were sent again on them
    moved: int  # of these connections, that go over another NIC than before

class SessionCount(TypedDict):
    group: int
    rank: int
    rings: list[RingCount]
    destinations: list[DestinationCount]  # only those with traffic
    proxies: list[ProxyCount]

class PhaseStats(TypedDict):
    count: int
    sum_ns: int
    min_ns: int
    max_ns: int
    zero_count: int
    scale: int
    offset: int  # index of buckets[0]; bucket i: (b**i, b**(i+1)] seconds, b = 2**2**-scale
    buckets: list[int]  # trimmed at both ends; may be empty

class BarrierStats(TypedDict):
    phases: dict[str, PhaseStats]  # arrive, local, network, release, total
    stragglers: dict[int, int]  # on the leader's node: rank -> barriers in which it came last

class BarrierTimes(TypedDict):
    """One barrier as this node saw it; times are unix nanoseconds, in order."""

    trace_id: bytes  # 16, big-endian, never 0: of the group's uid, the epoch and the number
    epoch: int
    number: int
    last_rank: int  # of all on the leader's node, else of this node; -1: it is gone
    leads: bool  # this is the leader's node
    alone: bool  # by dissemination: last_rank is of this node also where it leads
    kept: bool  # the leader decided to keep it as a trace
    began_ns: int  # the group's first rank arrived: exact on the leader's node, else first_ns
    first_ns: int  # the node's first rank arrived
    entered_ns: int  # its last rank had arrived
    posted_ns: int  # its arrival was posted (recorded, on the leader)
    network_ns: int  # the release came (all nodes had arrived, on the leader)
    released_ns: int  # its ranks may go
    left_ns: int  # the last one went

class TakenBarriers(TypedDict):
    position: int  # from where to go on
    overwritten: int  # since the asked position, before they were taken
    barriers: list[BarrierTimes]  # oldest first

@final
class RemoteRank:
    def __init__(self, rank: int, node: int, blob: bytes) -> None:
        """blob: that session's describe()."""
    @property
    def rank(self) -> int: ...
    @property
    def node(self) -> int: ...
    @property
    def blob(self) -> bytes: ...

@final
class Session:
    """One rank of one pod. Calls may overlap; close() ends it and them (idempotent)."""
    @property
    def rank(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def region_bytes(self) -> int:
        """Extent of the rank's offset space: the end of its last region."""
    def register_memfd(self, fd: int, bytes: int) -> RegionInfo:
        """Maps, checks and seals a pod's memfd (the caller closes fd). Before open_epoch."""
    def register_dmabuf(self, fd: int, bytes: int) -> RegionInfo:
        """Keeps a GPU's memory by its dma-buf (the caller closes fd) and registers it with the NICs
        of a core that uses verbs. No CPU touches it: what ranks of this node write there, and
        ATOMICs that no NIC applies, are refused. Before open_epoch."""
    def share(self) -> tuple[int, int]:
        """New descriptors of the pod's and the agent's memfd; the caller closes them."""
    def describe(self) -> bytes:
        """What other nodes need to write to this rank; after the last register_memfd()."""
    def endpoints(self) -> list[bytes]:
        """libfabric address of each proxy; empty without a provider."""
    def drain(self, timeout_ms: int) -> bool:
        """Waits until every ring has nothing visible and nothing outstanding."""
    def move(self, cpus: list[int]) -> None:
        """Pins the proxies that still run to these CPUs, the first ones if fewer; -1: any CPU."""
    def counters(self) -> SessionCount:
        """Exact counts; works after close() too (the last values)."""
    def close(self, timeout_ms: int = 5000) -> None:
        """Stops the proxies; afterwards nobody touches the session's memory."""

@final
class Core:
    """One per agent process."""
    def __init__(
        self,
        *,
        address: str,
        provider: str = "tcp;ofi_rxm",
        drain_batch: int = 32,
        max_inflight: int = 256,
        max_inflight_bytes: int = 67108864,
        idle: str = "adaptive",
        histogram_scale: int = 5,
        stall_timeout_ms: int = 10000,
        connect_timeout_ms: int = 10000,
        ports: Sequence[tuple[str, int, str]] = (),
        gated: bool = False,
        adaptive: bool = False,
        packing: int = 8,
        early_pop: bool = True,
        nics_per_gpu: int = 1,
        qp_selection: str = "leastInflight",
        atomics: str = "auto",
    ) -> None:
        """address: IP that endpoints bind to; provider "" = same node only. stall_timeout_ms:
        an epoch fails when a peer acknowledges nothing for that long though it should. gated: the
        protocol for networks without order, whatever the provider keeps (the same at every agent
        of a group). adaptive: below the limits, caps follow the latency of completions, where the
        peer's NIC makes them. nics_per_gpu: above 1, writes are striped over up to so many of
        `ports` (at every agent of a group, or at none); qp_selection: leastInflight, roundRobin.
        atomics: "auto", "hardware" or "emulated"; an epoch that cannot have its ranks' NICs apply
        them is refused where "hardware" is asked for."""
    def nics(self) -> dict[str, tuple[dict[str, int], dict[str, int]]]:
        """By device of `ports`: its limits as rdma_limits() has them, and what sessions and groups
        of this core take of those that are counted."""
    def open_session(
        self,
        *,
        group: int,
        rank: int,
        world: int,
        rings: int,
        depth: int,
        signals: int,
        cpus: list[int],
        quota_bytes: int = 68719476736,
        max_inflight: int = 0,
        nics: list[int] = [],
        nics_used: int = 0,
    ) -> Session:
        """One proxy thread per entry of cpus (-1 = not pinned). nics: of the core's ports, by their
        places, in the session's own order (none: all as they are); the first nics_used of them (0:
        all) share the proxies, and the others stand by."""
    def open_epoch(
        self,
        group: int,
        epoch: int,
        local: list[Session],
        remote: list[RemoteRank],
        leader_rank: int,
        nodes: list[list[int]],
        barrier_timeout_ms: int,
        mask: bool = False,
        uid: bytes = b"",
        dissemination: bool = False,
    ) -> None:
        """Connects every local session with every remote rank; nodes: the ranks of each node,
        the same list on every node. Bounded by connect_timeout_ms. mask: see Event.kind. uid: the
        group's, 16 bytes, the same on every node too (empty: zeros). dissemination: between nodes
        barriers need no leader; also the same on every node."""
    def start_epoch(self, group: int) -> None: ...
    def atomics(self, group: int) -> str:
        """Who applies the open epoch's atomics and why: `hardware: …` or `emulated: …`."""
    def fail_epoch(self, group: int, reason: str) -> None:
        """Sets the abort words, stops the group's proxies, drops its peers (idempotent)."""
    def rank_left(self, group: int, rank: int) -> None:
        """Later commands to that rank are refused; returns when no proxy writes to it any more."""
    def mask_ranks(self, group: int, ranks: list[int]) -> None:
        """These ranks are lost: their bit shows in every local session's mask, commands to them
        complete as masked, their own sessions here are aborted and write no more. Returns when
        no proxy writes to them any more. Barriers still wait for them (idempotent)."""
    def exclude_ranks(self, group: int, ranks: list[int]) -> None:
        """Once every node has masked these ranks: barriers go on without them. A session of
        theirs may be closed now; one that the barrier still needs gives back its memory, and
        ends with the epoch."""
    def absent(self, group: int, barrier: int) -> list[int]:
        """Local ranks, not masked, that have not entered the barrier with this number."""
    def close_epoch(self, group: int) -> None:
        """Orderly end: stops the group's proxies; the sessions are closed by their owner."""
    def failure(self, group: int) -> str:
        """Why the group's epoch failed; empty where it has not."""
    def events(self) -> list[Event]:
        """Takes what happened since the last call."""
    def event_fd(self) -> int:
        """Readable while events() has something."""
    def port_fds(self) -> list[int]:
        """One per entry of `ports`; readable while port_news() has something."""
    def port_news(self) -> list[str]:
        """What befell the ports since the last call: down, up, other GIDs. From one thread."""
    def counters(self) -> list[SessionCount]:
        """Of every open session."""
    def barrier_stats(self, group: int, rail: bool = False) -> BarrierStats:
        """Of all epochs of that group so far; empty phases where it had no barrier. rail: of
        barriers along rails, of all of this node's; they have no stragglers."""
    def take_barriers(
        self, group: int, position: int, limit: int, kept: bool = True
    ) -> TakenBarriers:
        """At most `limit` of the barriers that ended here since `position` (0: since the group
        began): of the last 4,096 kept ones, or of the last 4,096 of all."""
    def keep_barriers(self, *, ratio: float, slow_ns: int) -> None:
        """Which barriers are kept as traces from now on, in the groups led here: that part of all
        by their trace ids (0-1), and those that took at least slow_ns (0: none for that)."""
    def forget_group(self, group: int) -> None:
        """Drops the group's barrier statistics (after its series has ended)."""
    def close(self) -> None:
        """Ends all epochs and sessions (idempotent)."""
