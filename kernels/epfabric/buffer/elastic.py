"""ElasticBuffer: dispatch and combine with the methods of DeepEP's newer buffer; for applications.

Shapes, types and meanings are DeepEP's; docs/deepep.md lists where this differs.
"""

from __future__ import annotations

from typing import Any

from epfabric.buffer.config import elastic_size_hint
from epfabric.buffer.elastic_calls import Dispatched, ElasticCalls, Event
from epfabric.buffer.event import EventHandle, EventOverlap
from epfabric.buffer.members import size_of
from epfabric.buffer.owned import Owned
from epfabric.buffer.parts import Parts
from epfabric.buffer.request import EPHandle, request_of
from epfabric.session import Session

_SMS, _MOST_SMS = 20, 64


class ElasticBuffer(Owned):
    """One rank's end of a buffer; made by all ranks of the group together.

    num_bytes: of GPU memory; or num_max_tokens_per_rank, hidden and num_topk, of which the first is
    also what calls take when they name none. num_gpu_timeout_secs: of every wait on the GPU; then
    the buffer has failed, and its next call raises SessionError. Instead of group, by keyword: comm
    (of mpi4py), or session, a joined epfabric.Session.
    """

    def __init__(
        self,
        group: Any,
        num_bytes: int | None = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
        *,
        comm: Any = None,
        session: Session | None = None,
    ) -> None:
        if num_cpu_bytes:
            raise NotImplementedError(
                f"a buffer is GPU memory only: give num_cpu_bytes=0, not {num_cpu_bytes}"
            )
        self.explicitly_destroy = explicitly_destroy
        self.group = group if group is not None else comm
        self.deterministic, self.allow_hybrid_mode = deterministic, allow_hybrid_mode
        self.allow_multiple_reduction = allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        self.num_allocated_qps = num_allocated_qps
        self.num_max_tokens_per_rank = num_max_tokens_per_rank
        if num_bytes is None:
            members = next((one for one in (group, comm, session) if one is not None), None)
            num_bytes = self.get_buffer_size_hint(
                members, num_max_tokens_per_rank, hidden, num_topk, use_fp8_dispatch,
                allow_hybrid_mode, allow_multiple_reduction,
            )  # fmt: skip
        elif num_bytes < 1:
            raise ValueError(f"num_bytes must be at least 1, not {num_bytes}")
        self.num_bytes = num_bytes
        self._parts = Parts.make(
            group,
            comm,
            session,
            nvl_bytes=num_bytes,
            low_latency_bytes=0,
            mask=False,
            timeout_s=num_gpu_timeout_secs,
            low_latency_sms=0,
        )
        self.rank_idx, self.num_ranks = self._parts.members.rank, self._parts.members.size
        self.num_scaleout_ranks, self.num_scaleup_ranks = self.get_logical_domain_size()
        self.scaleout_rank_idx, self.scaleup_rank_idx = 0, self.rank_idx
        self.num_rdma_ranks, self.num_nvlink_ranks = self.get_physical_domain_size()

    @staticmethod
    def get_buffer_size_hint(
        group: Any,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """The num_bytes that suffice; group: what the constructor takes as group, comm or session.
        The last three change nothing: rows of combine are bfloat16, and the largest."""
        return elastic_size_hint(size_of(group), num_max_tokens_per_rank, hidden, num_topk)

    @staticmethod
    def capture() -> EventHandle:
        """An event of torch's current stream, as it is now."""
        return EventHandle()

    def get_physical_domain_size(self) -> tuple[int, int]:
        """Nodes, and ranks of one: there is one node."""
        return 1, self.num_ranks

    def get_logical_domain_size(self) -> tuple[int, int]:
        return 1, self.num_ranks

    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 200,
        sm_write_gbs: float = 50,
    ) -> int:
        """What a call takes that names none: a fixed number, whatever is asked, more of them
        without prefer_overlap_with_compute."""
        wanted = _SMS if self.prefer_overlap_with_compute else _MOST_SMS
        return min(wanted, self.parts.routing.processors // 2 * 2)

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """0: nothing goes over a NIC."""
        return 0

    def barrier(
        self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True
    ) -> None:
        """The current stream waits until all ranks have come here; with with_cpu_sync the host
        too, which before waits for all that this process does on the GPU."""
        import torch

        bulk = self.parts.throughput
        if with_cpu_sync:
            torch.cuda.synchronize()
        bulk.check()
        event = bulk.meet(aside=use_comm_stream)
        if use_comm_stream:
            event.current_stream_wait()
        if with_cpu_sync:
            torch.cuda.synchronize()
            bulk.check()

    def dispatch(
        self,
        x: Any,
        topk_idx: Any = None,
        topk_weights: Any = None,
        cumulative_local_expert_recv_stats: Any = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Event = None,
        previous_event_before_epilogue: Event = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> Dispatched:
        """Each token to the ranks that it goes to, in the order of ranks and tokens; with do_expand
        once for each expert there, by expert: rows (and scales), their experts (not with
        do_expand), their weights, handle, event.

        With a handle the routing is that of the handle's dispatch. Without do_cpu_sync nothing
        waits on the host, and there is room for all rows that may come.
        """
        if (topk_idx is None) == (handle is None):
            raise ValueError("either topk_idx or the handle of a dispatch is needed, not both")
        if do_zero_padding and not do_expand:
            raise ValueError("do_zero_padding is of the padding that do_expand=True makes")
        request = request_of(
            handle,
            count=len(x[0] if isinstance(x, tuple) else x),
            experts=num_experts,
            tokens=num_max_tokens_per_rank,
            alignment=expert_alignment,
            sms=num_sms,
            sync=do_cpu_sync,
            expand=do_expand,
            default_tokens=self.num_max_tokens_per_rank,
            default_sms=self.get_theoretical_num_sms(0, 0),
        )
        if handle is not None:
            return ElasticCalls(self.parts).again(
                x,
                topk_weights,
                handle,
                after=previous_event,
                also_after=previous_event_before_epilogue,
                aside=async_with_compute_stream,
                zero=do_zero_padding,
                columns=use_tma_aligned_col_major_sf,
            )
        return ElasticCalls(self.parts).dispatch(
            x,
            topk_idx,
            topk_weights,
            request,
            sums=cumulative_local_expert_recv_stats,
            after=previous_event,
            also_after=previous_event_before_epilogue,
            aside=async_with_compute_stream,
            copies=do_handle_copy,
            zero=do_zero_padding,
            columns=use_tma_aligned_col_major_sf,
        )

    def combine(
        self,
        x: Any,
        handle: EPHandle,
        topk_weights: Any = None,
        bias: Any = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Event = None,
        previous_event_before_epilogue: Event = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, EventOverlap]:
        """Sums each token's rows (and weights) of all ranks, without weighting: [tokens, hidden],
        [tokens, k], event. bias: one or two [tokens, hidden] that are added. Of a dispatch with
        do_expand a rank first sums the rows of its experts, as bfloat16."""
        if handle.do_expand and not self.allow_multiple_reduction:
            raise NotImplementedError(
                "rows of a token's experts on one rank are summed before they travel: make the "
                "buffer with allow_multiple_reduction=True, or dispatch with do_expand=False"
            )
        if num_sms and num_sms != handle.num_sms:
            raise ValueError(
                f"the handle is of a dispatch with num_sms={handle.num_sms}, not {num_sms}: give "
                "the same, or none"
            )
        return ElasticCalls(self.parts).combine(
            x,
            handle,
            topk_weights,
            bias,
            after=previous_event,
            also_after=previous_event_before_epilogue,
            aside=async_with_compute_stream,
        )
