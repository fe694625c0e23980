"""Buffer: dispatch and combine among the ranks of a group, with DeepEP's methods; for applications.

Shapes, types and meanings are DeepEP's; docs/deepep.md lists where this differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from epfabric.buffer.config import Config, recommended, throughput_region_bytes
from epfabric.buffer.event import EventHandle, EventOverlap
from epfabric.buffer.layout import layout_of
from epfabric.buffer.low_latency import Handle, Hook
from epfabric.buffer.owned import Owned
from epfabric.buffer.parts import Parts
from epfabric.buffer.tensors import checked_tensor, view_of
from epfabric.cuda.window import MAX_TOPK, Shape, region_bytes, window_of
from epfabric.region import Region
from epfabric.session import Session

if TYPE_CHECKING:
    from epfabric.cuda.gpu_region import GpuRegion


class Buffer(Owned):
    """One rank's end of a buffer; made by all ranks of the group together.

    num_nvl_bytes: of GPU memory for dispatch and combine; num_rdma_bytes: for the low-latency
    calls, if low_latency_mode. enable_shrink: a rank that does not come in time is masked;
    otherwise the buffer has failed, and its next call raises SessionError. session: instead of
    group, a joined epfabric.Session, whose ranks these are and whose agent brokers the memory.
    region: of get_low_latency_region_bytes(), which each rank registered with its session, all at
    the same offset; low-latency calls go through it and the agents to ranks of other nodes.
    throughput_region: the same for dispatch and combine, of get_throughput_region_bytes().
    """

    num_sms: ClassVar[int] = 20
    timeout_s: ClassVar[float] = 100.0  # of every wait on the GPU
    low_latency_sms: ClassVar[int] = 0  # of these calls; 0: all, shared with ranks on the same GPU

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
        *,
        session: Session | None = None,
        region: Region | GpuRegion | None = None,
        throughput_region: Region | GpuRegion | None = None,
    ) -> None:
        for name, one, wanted in (
            ("region", region, low_latency_mode),
            ("throughput_region", throughput_region, num_nvl_bytes),
        ):
            if one is not None and not (session is not None and wanted):
                raise ValueError(f"{name} is for calls that this buffer does not have")
        if num_nvl_bytes and region is not None and throughput_region is None:
            raise ValueError("dispatch and combine need a throughput_region beside the region")
        if not allow_nvlink_for_low_latency_mode:
            raise NotImplementedError(
                "low-latency calls use the memory of the node's GPUs where they reach it: "
                "allow_nvlink_for_low_latency_mode=False is not there yet"
            )
        self.group = group if group is not None else comm
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode, self.enable_shrink = low_latency_mode, enable_shrink
        self.explicitly_destroy = explicitly_destroy
        self._parts = Parts.make(
            group,
            comm,
            session,
            nvl_bytes=num_nvl_bytes,
            low_latency_bytes=num_rdma_bytes if low_latency_mode else 0,
            mask=enable_shrink,
            timeout_s=type(self).timeout_s,
            low_latency_sms=type(self).low_latency_sms,
            region=region,
            throughput_region=throughput_region,
        )
        self.rank, self.group_size = self._parts.members.rank, self._parts.members.size

    @staticmethod
    def is_sm90_compiled() -> bool:
        """True: kernels are compiled for the GPU at hand, when a buffer is made."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """Of dispatch and combine, for all buffers of this process; even."""
        Config(new_num_sms)
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """An event of torch's current stream, as it is now."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """The num_rdma_bytes that suffice for every top-k."""
        topk = min(MAX_TOPK, num_experts)
        return window_of(
            Shape(num_ranks, num_experts, num_max_dispatch_tokens_per_rank, hidden, topk)
        ).bytes

    @staticmethod
    def get_low_latency_region_bytes(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """The size of a region that suffices for every top-k."""
        topk = min(MAX_TOPK, num_experts)
        return region_bytes(
            Shape(num_ranks, num_experts, num_max_dispatch_tokens_per_rank, hidden, topk)
        )

    @staticmethod
    def get_throughput_region_bytes(config: Config, hidden_bytes: int, num_ranks: int) -> int:
        """The size of a throughput_region that suffices for tokens of so many bytes."""
        return throughput_region_bytes(config, hidden_bytes, num_ranks)

    def get_local_buffer_tensor(
        self, dtype: Any, size: Any = None, offset: int = 0, use_rdma_buffer: bool = False
    ) -> Any:
        """This rank's part of the buffer as it is: from element `offset` on, of shape `size`."""
        address, size_bytes = self.parts.memory(low_latency=use_rdma_buffer)
        tensor = view_of(address, size_bytes, dtype)[offset:]
        if size is None:
            return tensor
        if tensor.numel() < size.numel():
            raise ValueError(f"{size} has more than the {tensor.numel()} elements that there are")
        return tensor[: size.numel()].view(size)

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return recommended(num_ranks, Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return recommended(num_ranks, Buffer.num_sms)

    def get_dispatch_layout(
        self,
        topk_idx: Any,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, Any, Any, EventOverlap]:
        """Tokens for each rank [ranks], node [nodes] (None where there is one) and expert [experts]
        (int32), and which go to which rank [tokens, ranks] (bool)."""
        return layout_of(self.parts, topk_idx, num_experts, previous_event, async_finish)

    def dispatch(
        self,
        x: Any,
        handle: Any = None,
        num_tokens_per_rank: Any = None,
        num_tokens_per_rdma_rank: Any = None,
        is_token_in_rank: Any = None,
        num_tokens_per_expert: Any = None,
        topk_idx: Any = None,
        topk_weights: Any = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, Any, Any, Any, EventOverlap]:
        """Each token to the ranks that it goes to, in the order of ranks and tokens: rows (and
        scales), their experts and weights, rows of each expert, handle, event.

        With num_worst_tokens nothing waits on the host, and there are so many rows; with a handle
        the routing is that of the handle's dispatch.
        """
        if handle is None:
            needed = (num_tokens_per_rank, num_tokens_per_expert, is_token_in_rank)
            if any(one is None for one in needed):
                raise ValueError(
                    "without a handle num_tokens_per_rank, num_tokens_per_expert and "
                    "is_token_in_rank are needed: get_dispatch_layout() makes them"
                )
        elif topk_idx is not None or topk_weights is not None:
            raise ValueError("with a handle there is no topk_idx and no topk_weights")
        return self.parts.throughput.dispatch(
            x,
            handle,
            (num_tokens_per_rank, num_tokens_per_expert, is_token_in_rank),
            topk_idx,
            topk_weights,
            alignment=expert_alignment,
            worst=num_worst_tokens,
            config=config or self.get_dispatch_config(self.group_size),
            after=previous_event,
            aside=async_finish,
        )

    def combine(
        self,
        x: Any,
        handle: Any,
        topk_weights: Any = None,
        bias: Any = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, EventOverlap]:
        """Sums each token's rows (and weights) of all ranks, without weighting: [tokens, hidden],
        [tokens, k], event. bias: one or two [tokens, hidden] that are added."""
        return self.parts.throughput.combine(
            x,
            handle,
            topk_weights,
            bias,
            config=config or self.get_combine_config(self.group_size),
            after=previous_event,
            aside=async_finish,
        )

    def internode_dispatch(
        self,
        x: Any,
        handle: Any = None,
        num_tokens_per_rank: Any = None,
        num_tokens_per_rdma_rank: Any = None,
        is_token_in_rank: Any = None,
        num_tokens_per_expert: Any = None,
        topk_idx: Any = None,
        topk_weights: Any = None,
        expert_alignment: int = 1,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, Any, Any, Any, EventOverlap]:
        """dispatch(), which goes between nodes as well."""
        return self.dispatch(
            x,
            handle,
            num_tokens_per_rank,
            num_tokens_per_rdma_rank,
            is_token_in_rank,
            num_tokens_per_expert,
            topk_idx,
            topk_weights,
            expert_alignment,
            0,
            config,
            previous_event,
            async_finish,
        )

    def internode_combine(
        self,
        x: Any,
        handle: Any,
        topk_weights: Any = None,
        bias: Any = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, EventOverlap]:
        """combine(), which goes between nodes as well."""
        return self.combine(x, handle, topk_weights, bias, config, previous_event, async_finish)

    def clean_low_latency_buffer(
        self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> None:
        """Waits, on the current stream, until no rank needs what this one wrote. Nothing has to be
        cleaned; calls of another shape than those before wait likewise by themselves."""
        end, order = self.parts.low_latency.end, self.parts.order
        stream = order.begin(False)
        end.settle(stream=stream.cuda_stream)
        order.end(stream, False)

    def low_latency_dispatch(
        self,
        x: Any,
        topk_idx: Any,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Any = None,
        dispatch_wait_recv_cost_stats: Any = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[Any, Any, Handle, EventOverlap, Hook]:
        """Tokens by expert: (rows, scales) or rows, rows of each expert, handle, event, hook.

        Wait statistics are nanoseconds.
        """
        return self.parts.low_latency.dispatch(
            x,
            topk_idx,
            num_max_dispatch_tokens_per_rank,
            num_experts,
            sums=cumulative_local_expert_recv_stats,
            waits=dispatch_wait_recv_cost_stats,
            use_fp8=use_fp8,
            round_scale=round_scale,
            use_ue8m0=use_ue8m0,
            aside=async_finish,
            hooked=return_recv_hook,
        )

    def low_latency_combine(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        handle: Handle,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Any = None,
        combine_wait_recv_cost_stats: Any = None,
    ) -> tuple[Any, EventOverlap, Hook]:
        """Each token's weighted sum [tokens, hidden] (bfloat16), event, hook."""
        return self.parts.low_latency.combine(
            x,
            topk_idx,
            topk_weights,
            handle,
            zero_copy=zero_copy,
            aside=async_finish,
            hooked=return_recv_hook,
            out=out,
            waits=combine_wait_recv_cost_stats,
        )

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """From the next call on: nothing goes to the rank or comes from it."""
        stream = self.parts.order.begin(False)
        self.parts.masking().set_mask(rank_to_mask, mask, stream=stream.cuda_stream)
        self.parts.order.end(stream, False)

    def low_latency_query_mask_buffer(self, mask_status: Any) -> None:
        """Fills [ranks] (int32): 1 where the rank is masked."""
        import torch

        address = checked_tensor(mask_status, "mask_status", torch.int32, (self.group_size,))
        stream = self.parts.order.begin(False)
        self.parts.masking().read_mask(address, stream=stream.cuda_stream)
        self.parts.order.end(stream, False)

    def low_latency_clean_mask_buffer(self) -> None:
        """From the next call on no rank is masked but those that only the agents reach."""
        stream = self.parts.order.begin(False)
        self.parts.masking().clean_mask(stream=stream.cuda_stream)
        self.parts.order.end(stream, False)

    def get_next_low_latency_combine_buffer(self, handle: Handle) -> Any:
        """Where the next combine with zero_copy=True reads its rows; fill it before."""
        return self.parts.low_latency.next_rows(handle)
