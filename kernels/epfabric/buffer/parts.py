"""What a buffer is made of: compiled kernels, memory that all ranks reach, order; for Buffer and
ElasticBuffer."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from epfabric.buffer.attached import MEET_S
from epfabric.buffer.low_latency import LowLatencyCalls
from epfabric.buffer.members import Members, Window, members_of
from epfabric.buffer.order import Order
from epfabric.buffer.throughput import ThroughputCalls
from epfabric.cuda import channels
from epfabric.cuda.abort import Abort
from epfabric.cuda.kernels import Kernels
from epfabric.cuda.low_latency import SOURCE, LowLatency
from epfabric.cuda.rank import checked
from epfabric.cuda.through import AgentEnd
from epfabric.cuda.window import Shape
from epfabric.errors import SessionError
from epfabric.region import Region

if TYPE_CHECKING:
    from epfabric.cuda.gpu_region import GpuRegion


@dataclass
class Parts:
    """Made by all ranks together; closed by each when it likes."""

    members: Members
    order: Order
    routing: Kernels
    mask: bool
    calls: LowLatencyCalls | None = None
    bulk: ThroughputCalls | None = None
    abort: Abort | None = None  # of a session
    stack: ExitStack = field(default_factory=ExitStack)

    @staticmethod
    def make(
        group: Any, comm: Any, session: Any, *, nvl_bytes: int, low_latency_bytes: int, mask: bool,
        timeout_s: float, low_latency_sms: int, region: Region | GpuRegion | None = None,
        throughput_region: Region | GpuRegion | None = None,
    ) -> Parts:  # fmt: skip
        """region, throughput_region: of either kind of calls, for ranks whose memory is not
        reached. Raises SessionError where one is not reached, ValueError for no group. With a
        region, one rank's failure ends the session."""
        try:
            import torch
        except ImportError as error:
            raise SessionError(
                f"a buffer works on torch's tensors ({error}): install torch for your CUDA version"
            ) from error
        through = region is not None or throughput_region is not None
        members = members_of(group, comm, session, agents=through)
        torch.cuda.current_stream().synchronize()  # makes torch's context current
        parts = Parts(members, Order(), Kernels("routing.cu"), mask)
        with ExitStack() as undo:
            if through:
                undo.callback(session.abort)  # or ranks of other nodes would wait
            undo.callback(parts.stack.close)
            parts.stack.callback(parts.order.close)
            if session is not None:
                parts.abort = abort = Abort()
                parts.stack.callback(abort.close)
                parts.stack.callback(session.when_failed(abort.set))
            parts.routing.function("route_tokens")
            agent = None
            if through:
                agent = AgentEnd(
                    session, timeout_s, low_latency_region=region,
                    throughput_region=throughput_region,
                )  # fmt: skip
                parts.stack.callback(agent.close)
            if low_latency_bytes:
                parts.calls = parts._low_latency(
                    low_latency_bytes, timeout_s, low_latency_sms, agent
                )
            if nvl_bytes:
                parts.bulk = parts._throughput(nvl_bytes, timeout_s, agent)
            undo.pop_all()
        return parts

    def _low_latency(
        self, size_bytes: int, timeout_s: float, sms: int, agent: AgentEnd | None
    ) -> LowLatencyCalls:
        kernels = Kernels(SOURCE)
        world = self.members.size
        with ExitStack() as undo:
            window = self._window(size_bytes, undo)
            end = LowLatency(
                Shape(world, world, 1, 128, 1),  # the calls say what they need
                self.members.rank,
                kernels,
                blocks=sms or kernels.processors // window.sharers,
                timeout_s=timeout_s,
                mask=self.mask,
                abort=self.abort,
                window_bytes=size_bytes,
                memory=window.own,
                through=agent.low_latency if agent is not None else None,
            )
            self._connect(end, window, undo)
        if agent is not None:
            self.stack.callback(lambda: agent.note(lost=end.lost_ring()))
        return LowLatencyCalls(end, self.order)

    def _throughput(
        self, size_bytes: int, timeout_s: float, agent: AgentEnd | None
    ) -> ThroughputCalls:
        through = agent.throughput if agent is not None else None
        kernels = Kernels(channels.SOURCE, () if through is not None else channels.WITHIN_NODE)
        with ExitStack() as undo:
            window = self._window(size_bytes, undo)
            end = channels.Channels(
                self.members.size,
                self.members.rank,
                kernels,
                window_bytes=size_bytes,
                timeout_s=timeout_s,
                memory=window.own,
                abort=self.abort,
                through=through,
            )
            self._connect(end, window, undo)
        if agent is not None:
            self.stack.callback(lambda: agent.note(lost=end.lost_ring()))
            if through is not None:
                near = alike_nodes(end.world, end.rank, end.proxied)
                end.spread(near if agent.alike(near, MEET_S) else 1)
        return ThroughputCalls(end, self.order)

    def _window(self, size_bytes: int, undo: ExitStack) -> Window:
        """Freed by `undo`, until there is an end that does it."""
        window = self.members.window(size_bytes)
        undo.callback(window.own.close)
        undo.callback(window.close)
        return window

    def _connect(
        self, end: LowLatency | channels.Channels, window: Window, undo: ExitStack
    ) -> None:
        undo.pop_all()
        self.stack.callback(end.close)
        self.stack.callback(window.close)
        end.connect(window.addresses)

    @property
    def throughput(self) -> ThroughputCalls:
        if self.bulk is None:
            raise ValueError(
                "no dispatch and combine: make the buffer with "
                "num_nvl_bytes=config.get_nvl_buffer_size_hint(...)"
            )
        return self.bulk

    @property
    def low_latency(self) -> LowLatencyCalls:
        if self.calls is None:
            raise ValueError(
                "no low-latency calls: make the buffer with low_latency_mode=True and "
                "num_rdma_bytes=Buffer.get_low_latency_rdma_size_hint(...)"
            )
        return self.calls

    def masking(self) -> LowLatency:
        """The end whose mask may be changed; ValueError unless made for it."""
        if not self.mask:
            raise ValueError("make the buffer with enable_shrink=True to mask ranks")
        return self.low_latency.end

    def memory(self, *, low_latency: bool) -> tuple[int, int]:
        """Address and bytes of this rank's part."""
        end = self.low_latency.end if low_latency else self.throughput.end
        return end.window, end.window_bytes

    def close(self) -> None:
        """After the last call of this rank; waits until no other rank writes here any more: where
        there is memory for dispatch and combine until all close."""
        from cuda.bindings import driver

        try:
            with self.stack:  # whatever fails before: nobody closes again
                if self.calls is not None and self.calls.end.failure() is None:
                    stream = self.order.begin(False)
                    self.calls.end.settle(stream=stream.cuda_stream)
                if self.bulk is not None and self.bulk.end.failure() is None:
                    self.bulk.meet()
                checked(driver.cuCtxSynchronize())
        except SessionError as error:
            raise SessionError(f"the buffer's memory could not be freed: {error}") from error


def alike_nodes(world: int, rank: int, proxied: Collection[int]) -> int:
    """How many ranks each node has, as far as this one sees: 1 unless its own node's follow each
    other as they do where all nodes have as many."""
    near = [other for other in range(world) if other not in proxied]
    first = rank // len(near) * len(near)
    alike = world % len(near) == 0 and near == list(range(first, first + len(near)))
    return len(near) if alike else 1
