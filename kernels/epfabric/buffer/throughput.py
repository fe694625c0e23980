"""The high-throughput calls of Buffer, and beneath ElasticBuffer: torch's tensors, the kernels in
between."""

from __future__ import annotations

from typing import Any

from epfabric.buffer.config import Config
from epfabric.buffer.event import EventOverlap
from epfabric.buffer.order import Order
from epfabric.buffer.tensors import checked_tensor
from epfabric.cuda.channels import (
    ChannelCombine,
    ChannelDispatch,
    Channels,
    ChannelShape,
    MeetCall,
)
from epfabric.cuda.window import MAX_TOPK
from epfabric.errors import SessionError


class ThroughputHandle(tuple[Any, ...]):
    """First rows of the sources, positions of the sent tokens, first rows of the channels, source
    tokens, is_token_in_rank: by which a dispatch is repeated and answered."""

    channels: int
    rows: int  # that the dispatch had room for


class ThroughputCalls:
    """Those of one buffer, over its `end`."""

    def __init__(self, end: Channels, order: Order) -> None:
        import torch

        self._torch, self.end, self._order = torch, end, order

    def dispatch(
        self, x: Any, handle: ThroughputHandle | None, layout: tuple[Any, Any, Any], topk_idx: Any,
        topk_weights: Any, *, alignment: int, worst: int, config: Config,
        after: EventOverlap | None, aside: bool, told: Any = None,
    ) -> tuple[Any, Any, Any, Any, Any, EventOverlap]:  # fmt: skip
        """As Buffer.dispatch; layout: tokens by rank, tokens by expert, which go where. With a
        handle its topk_idx may be given again, for new weights.

        told: with `worst`, [2 + local experts] (int64) on the GPU: 1, rows, rows of each expert.
        """
        torch = self._torch
        self.check()
        x, scales = x if isinstance(x, tuple) else (x, None)
        topk = topk_idx.shape[1] if topk_idx is not None else 0
        shape = self._shape(x, scales, topk, config)
        if handle is not None and handle.channels != shape.channels:
            raise ValueError(
                f"the handle is of a dispatch with {2 * handle.channels} multiprocessors, not "
                f"{2 * shape.channels}: give both the same config"
            )
        stream = self._order.begin(aside, after)
        with torch.cuda.stream(stream):
            given = scales
            if scales is not None:  # a copy on this stream: the kernels do not wait for another
                scales = scales.contiguous()
            if handle is None:
                firsts, rows, experts = self._meet(shape, layout, alignment, worst, told, stream)
                in_rank = layout[2]
            else:
                firsts, in_rank, rows, experts = handle[0], handle[4], handle.rows, None
                self.end.meet(shape, MeetCall(), stream=stream.cuda_stream)
            call, outs, made = self._call(x, scales, topk_idx, topk_weights, in_rank, firsts, rows,
                                          layout[1], shape)  # fmt: skip
            call.fills = int(worst > 0)  # rows that nobody sends have no expert
            self.end.dispatch(call, stream=stream.cuda_stream)
        new = handle if handle is not None else ThroughputHandle((firsts, *made, in_rank))
        new.channels, new.rows = shape.channels, rows
        alive = (x, given, scales, topk_idx, topk_weights, *layout, *outs, *made, *new)
        event = self._order.end(stream, aside, alive)
        received, received_scales, received_topk, received_weights = outs
        out = (received, received_scales) if scales is not None else received
        if handle is not None:
            return out, received_topk, received_weights, None, None, event
        return out, received_topk, received_weights, experts, new, event

    def _meet(
        self, shape: ChannelShape, layout: tuple[Any, Any, Any], alignment: int, worst: int,
        told: Any, stream: Any,
    ) -> tuple[Any, int, list[int]]:  # fmt: skip
        """First rows of the sources, room for rows, rows of each expert (none with `worst`)."""
        torch, world = self._torch, self.end.world
        by_rank, by_expert, _ = layout
        firsts = torch.empty(world + 1, dtype=torch.int32, device=by_rank.device)
        place = told.data_ptr() if told is not None else 0
        call = MeetCall(
            rank_tokens=checked_tensor(by_rank, "num_tokens_per_rank", torch.int32, (world,)),
            expert_tokens=checked_tensor(by_expert, "num_tokens_per_expert", torch.int32, (None,)),
            firsts=firsts.data_ptr(),
            told=place if worst else self.end.told.address,
            experts=len(by_expert),
            alignment=alignment,
        )
        self.end.meet(shape, call, stream=stream.cuda_stream)
        if worst:
            return firsts, worst, []
        rows, experts = self.end.await_told(len(by_expert) // world)
        return firsts, rows, experts

    def _call(
        self, x: Any, scales: Any, topk_idx: Any, topk_weights: Any, in_rank: Any, firsts: Any,
        rows: int, by_expert: Any, shape: ChannelShape,
    ) -> tuple[ChannelDispatch, tuple[Any, ...], tuple[Any, ...]]:  # fmt: skip
        """The call, what it brings, what it makes for the handle."""
        torch, world, count = self._torch, self.end.world, len(x)
        like = {"device": x.device}
        flags = checked_tensor(in_rank, "is_token_in_rank", torch.bool, (count, world))
        positions = torch.empty((count, world), dtype=torch.int32, **like)
        channel_firsts = torch.empty((world, shape.channels), dtype=torch.int32, **like)
        tokens = torch.empty(rows, dtype=torch.int32, **like)
        received = torch.empty((rows, x.shape[1]), dtype=x.dtype, **like)
        outs: list[Any] = [received, None, None, None]
        call = ChannelDispatch(
            tokens=x.data_ptr(),
            in_rank=flags,
            firsts=firsts.data_ptr(),
            positions=positions.data_ptr(),
            channel_firsts=channel_firsts.data_ptr(),
            source_tokens=tokens.data_ptr(),
            received=received.data_ptr(),
            count=count,
            local_experts=len(by_expert) // world if by_expert is not None else 0,
            rows=rows,
        )
        if scales is not None:
            call.scales = checked_tensor(scales, "scales", torch.float32, (count, shape.scales))
            outs[1] = torch.empty((rows, shape.scales), dtype=torch.float32, **like)
            call.received_scales = outs[1].data_ptr()
        if topk_idx is not None:
            wanted = (count, shape.topk)
            call.topk = checked_tensor(topk_idx, "topk_idx", torch.int64, wanted)
            outs[2] = torch.empty((rows, shape.topk), dtype=torch.int64, **like)
            call.received_topk = outs[2].data_ptr()
            if topk_weights is not None:
                call.weights = checked_tensor(topk_weights, "topk_weights", torch.float32, wanted)
                outs[3] = torch.empty((rows, shape.topk), dtype=torch.float32, **like)
                call.received_weights = outs[3].data_ptr()
        return call, tuple(outs), (positions, channel_firsts, tokens)

    def combine(
        self, x: Any, handle: ThroughputHandle, topk_weights: Any, bias: Any, *, config: Config,
        after: EventOverlap | None, aside: bool,
    ) -> tuple[Any, Any, EventOverlap]:  # fmt: skip
        """As Buffer.combine."""
        torch = self._torch
        self.check()
        firsts, positions, channel_firsts, tokens, _ = handle
        count, biases = len(positions), bias if isinstance(bias, tuple) else (bias, None)
        topk = topk_weights.shape[1] if topk_weights is not None else 0
        rows = checked_tensor(x, "x", torch.bfloat16, (len(tokens), None))
        shape = self._shape(x, None, topk, config, handle.channels)
        stream = self._order.begin(aside, after)
        with torch.cuda.stream(stream):
            out = torch.empty((count, x.shape[1]), dtype=torch.bfloat16, device=x.device)
            call = ChannelCombine(
                rows=rows,
                firsts=firsts.data_ptr(),
                channel_firsts=channel_firsts.data_ptr(),
                positions=positions.data_ptr(),
                source_tokens=tokens.data_ptr(),
                combined=out.data_ptr(),
                count=count,
            )
            weights = None
            if topk_weights is not None:
                wanted = (len(tokens), topk)
                call.weights = checked_tensor(topk_weights, "topk_weights", torch.float32, wanted)
                weights = torch.empty((count, topk), dtype=torch.float32, device=x.device)
                call.combined_weights = weights.data_ptr()
            names = ("bias", "second_bias")
            for name, one in zip(names, biases, strict=True):
                if one is not None:
                    place = checked_tensor(one, "bias", torch.bfloat16, (count, x.shape[1]))
                    setattr(call, name, place)
            self.end.meet(shape, MeetCall(), stream=stream.cuda_stream)
            self.end.combine(call, stream=stream.cuda_stream)
        alive = (x, *handle, topk_weights, *biases, out, weights)
        return out, weights, self._order.end(stream, aside, alive)

    def meet(self, aside: bool = False) -> EventOverlap:
        """On its stream: waits until all ranks have come here, or the buffer has failed."""
        stream = self._order.begin(aside)
        shape = self.end.fit(1, 1, 0, 0, 16)
        self.end.meet(shape, MeetCall(), stream=stream.cuda_stream)
        return self._order.end(stream, aside)

    def _shape(
        self, x: Any, scales: Any, topk: int, config: Config, channels: int = 0
    ) -> ChannelShape:
        if x.dim() != 2 or not x.is_contiguous() or not x.is_cuda:
            raise ValueError("x must be [tokens, hidden], contiguous, and in GPU memory")
        row_bytes = x.shape[1] * x.element_size()
        if row_bytes % 16:
            raise ValueError(f"a token has {row_bytes} bytes: a multiple of 16 is needed")
        if topk > MAX_TOPK:
            raise ValueError(f"top-{topk}: {MAX_TOPK} at most")
        slots = config.num_max_nvl_chunked_recv_tokens
        if self.end.proxied:
            slots = min(slots, config.num_max_rdma_chunked_recv_tokens)
        return self.end.fit(
            channels or config.num_sms // 2,
            slots,
            topk,
            scales.shape[1] if scales is not None else 0,
            row_bytes,
        )

    def check(self) -> None:
        """Raises SessionError when the buffer has failed."""
        why = self.end.failure()
        if why is not None:
            raise SessionError(f"the buffer has failed: {why}; make a new one")
