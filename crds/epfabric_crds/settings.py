"""The parts of spec that EPFabric and EPFabricNode share; read by operator and agent.

Defaults equal those of definitions/epfabrics.yaml, field by field; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from epfabric_crds.quantity import duration_ms, short_duration_us, size_bytes


@dataclass(frozen=True, kw_only=True)
class Transport:
    type: Literal["auto", "verbs", "libfabric", "loopback"] = "auto"
    allow_tcp: bool = False


@dataclass(frozen=True, kw_only=True)
class NicSelector:
    drivers: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    pci_addresses: tuple[str, ...] = ()
    cidrs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Nics:
    mode: Literal["Observe", "Configure"] = "Observe"
    rails: Literal["Auto", "Connected", "Separate"] = "Auto"
    selector: NicSelector | None = None
    mtu: int | None = None
    roce_mode: Literal["v1", "v2"] | None = None
    trust: Literal["pcp", "dscp"] | None = None
    tos: int | None = None
    pfc: str | None = None
    ecn: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Fifo:
    depth: int = 1024
    batch: int = 8
    rings_per_proxy: int = 8
    signals: int = 16


@dataclass(frozen=True, kw_only=True)
class Proxies:
    per_gpu: int = field(default=4, metadata={"json": "perGPU"})
    numa: Literal["Preferred", "Strict"] = "Preferred"
    idle: Literal["spin", "adaptive"] = "adaptive"
    drain_batch: int = 32
    max_inflight: int = 256
    max_inflight_bytes: int = 64 << 20
    adaptive: bool = True


@dataclass(frozen=True, kw_only=True)
class LowLatency:
    packing: int = 8
    early_pop: bool = True


@dataclass(frozen=True, kw_only=True)
class HighThroughput:
    channels: int = 8
    qp_selection: Literal["leastInflight", "roundRobin"] = "leastInflight"
    nics_per_gpu: int = field(default=1, metadata={"json": "nicsPerGPU"})


@dataclass(frozen=True, kw_only=True)
class Barrier:
    algorithm: Literal["leader", "dissemination"] = "leader"
    timeout: str = "30s"
    join_timeout: str = "5m"

    @property
    def timeout_ms(self) -> int:
        return duration_ms(self.timeout)

    @property
    def join_timeout_ms(self) -> int:
        return duration_ms(self.join_timeout)


@dataclass(frozen=True, kw_only=True)
class Memory:
    per_pod: str = "4Gi"
    per_node: str = "64Gi"

    @property
    def per_pod_bytes(self) -> int:
        return size_bytes(self.per_pod)

    @property
    def per_node_bytes(self) -> int:
        return size_bytes(self.per_node)


@dataclass(frozen=True, kw_only=True)
class Traces:
    ratio: float = 0.0
    slow: str = "10ms"
    endpoint: str | None = None

    @property
    def slow_us(self) -> int:
        """0: no barrier is kept for being slow."""
        return short_duration_us(self.slow)


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    endpoint: str | None = None
    interval: str = "10s"
    histogram_scale: int = 5
    traces: Traces = Traces()

    @property
    def interval_ms(self) -> int:
        return duration_ms(self.interval)


@dataclass(frozen=True, kw_only=True)
class TenantLimits:
    """What the pods of one tenant may have on a node; None is no limit but the fabric's."""

    name: str
    max_sessions: int | None = None
    max_memory: str | None = None
    max_inflight: int | None = None
    max_groups: int | None = None

    @property
    def max_memory_bytes(self) -> int | None:
        return size_bytes(self.max_memory) if self.max_memory else None


Atomics = Literal["auto", "hardware", "emulated"]
OnRankLoss = Literal["Fail", "Mask"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the operator copies from an EPFabric into each of its EPFabricNodes."""

    transport: Transport = Transport()
    nics: Nics = Nics()
    fifo: Fifo = Fifo()
    proxies: Proxies = Proxies()
    low_latency: LowLatency = LowLatency()
    high_throughput: HighThroughput = HighThroughput()
    atomics: Atomics = "auto"
    barrier: Barrier = Barrier()
    on_rank_loss: OnRankLoss = "Fail"
    memory: Memory = Memory()
    telemetry: Telemetry = Telemetry()
    tenants: tuple[TenantLimits, ...] = ()

    @property
    def rings(self) -> int:
        """Rings of one session."""
        return self.proxies.per_gpu * self.fifo.rings_per_proxy
