"""The calls of an ElasticBuffer: high-throughput ones, and what torch does with their rows before
and after."""

from __future__ import annotations

from typing import Any

import numpy as np

from epfabric.buffer.config import Config
from epfabric.buffer.event import EventHandle, EventOverlap
from epfabric.buffer.expanded import ends_of, padded
from epfabric.buffer.layout import layout_of
from epfabric.buffer.parts import Parts
from epfabric.buffer.request import EPHandle, Request
from epfabric.buffer.tensors import checked_tensor
from epfabric.cuda import places
from epfabric.cuda.kernels import Kernels

_SCALES_ALIGNMENT = 4  # of column-major scales: 16 bytes
Event = EventHandle | EventOverlap | None
Dispatched = tuple[Any, Any, Any, EPHandle, EventOverlap]


class ElasticCalls:
    """Those of one buffer, over its parts."""

    def __init__(self, parts: Parts) -> None:
        import torch

        self._torch, self._parts, self._order = torch, parts, parts.order
        self._kernels = Kernels(places.SOURCE)
        for name in places.NAMES:  # the driver loads them only while no kernel runs
            self._kernels.function(name)

    def dispatch(
        self, x: Any, topk_idx: Any, topk_weights: Any, request: Request, *, sums: Any,
        after: Event, also_after: Event, aside: bool, copies: bool, zero: bool, columns: bool,
    ) -> Dispatched:  # fmt: skip
        """As ElasticBuffer.dispatch without a handle."""
        torch, world = self._torch, self._parts.members.size
        local = request.experts // world
        self._check(x, topk_idx, topk_weights)
        if sums is not None:
            name = "cumulative_local_expert_recv_stats"
            checked_tensor(sums, name, torch.int32, (local,))
        first = self._after(after, also_after, aside)
        by_rank, _, by_expert, in_rank, event = layout_of(
            self._parts, topk_idx, request.experts, first, aside
        )
        told = None
        if not request.sync:  # zeros: nothing may lead out of bounds when the dispatch fails
            with torch.cuda.stream(self._stream(aside)):
                told = torch.zeros(2 + local, dtype=torch.int64, device=topk_idx.device)
        out, experts, weights, counts, routes, event = self._parts.throughput.dispatch(
            _with_floats(torch, x),
            None,
            (by_rank, by_expert, in_rank),
            topk_idx,
            topk_weights,
            alignment=1,
            worst=0 if request.sync else request.most_rows(world),
            config=request.config,
            after=event,
            aside=aside,
            told=told,
        )
        stream = self._order.begin(aside, event)
        with torch.cuda.stream(stream):
            each, ends, sizes = self._counts(request, counts, told, topk_idx)
            handle = EPHandle(
                do_expand=request.expand,
                num_experts=request.experts,
                expert_alignment=request.alignment,
                num_max_tokens_per_rank=request.tokens,
                num_sms=request.sms,
                topk_idx=topk_idx.clone() if copies else topk_idx,
                num_recv_tokens=routes.rows,
                num_expanded_tokens=sum(sizes)
                if request.sync
                else request.most_places(world, topk_idx.shape[1]),
                num_recv_tokens_per_expert_list=sizes,
                psum_num_recv_tokens_per_scaleup_rank=routes[0][1:],
                psum_num_recv_tokens_per_expert=ends,
                num_unaligned_recv_tokens_per_expert=each if request.expand else None,
                routes=routes,
                expert_tokens=by_expert,
                experts=experts,
                synced=request.sync,
            )
            if sums is not None:
                sums += each
            if request.expand:
                self._place(handle, each)
            out, weights = self._laid_out(x, out, weights, handle, zero, columns)
        alive = (told, each, ends, handle.topk_idx, handle.places, handle.rows, weights, sums)
        event = self._order.end(stream, aside, (*alive, *_tensors(out)))
        return out, None if request.expand else experts, weights, handle, event

    def again(
        self, x: Any, topk_weights: Any, handle: EPHandle, *, after: Event, also_after: Event,
        aside: bool, zero: bool, columns: bool,
    ) -> Dispatched:  # fmt: skip
        """As ElasticBuffer.dispatch with a handle."""
        self._check(x, handle.topk_idx, topk_weights)
        first = self._after(after, also_after, aside)
        out, _, weights, _, _, event = self._parts.throughput.dispatch(
            _with_floats(self._torch, x),
            handle.routes,
            (None, handle.expert_tokens, None),
            handle.topk_idx if topk_weights is not None else None,
            topk_weights,
            alignment=1,
            worst=0 if handle.synced else handle.num_recv_tokens,
            config=Config(handle.num_sms),
            after=first,
            aside=aside,
        )
        stream = self._order.begin(aside, event)
        with self._torch.cuda.stream(stream):
            out, weights = self._laid_out(x, out, weights, handle, zero, columns)
        event = self._order.end(stream, aside, (weights, *_tensors(out)))
        return out, None if handle.do_expand else handle.experts, weights, handle, event

    def combine(
        self, x: Any, handle: EPHandle, topk_weights: Any, bias: Any, *, after: Event,
        also_after: Event, aside: bool,
    ) -> tuple[Any, Any, EventOverlap]:  # fmt: skip
        """As ElasticBuffer.combine."""
        torch, first = self._torch, self._after(after, also_after, aside)
        if handle.do_expand:
            total = handle.num_expanded_tokens
            checked_tensor(x, "x", torch.bfloat16, (total, None))
            if topk_weights is not None:
                checked_tensor(topk_weights, "topk_weights", torch.float32, (total,))
            stream = self._order.begin(aside, first)
            with torch.cuda.stream(stream):
                given = (x, topk_weights)
                x, topk_weights = self._summed(x, topk_weights, handle, stream.cuda_stream)
            first = self._order.end(stream, aside, (*given, x, topk_weights, handle.places))
        return self._parts.throughput.combine(
            x,
            handle.routes,
            topk_weights,
            bias,
            config=Config(handle.num_sms),
            after=first,
            aside=aside,
        )

    def _counts(
        self, request: Request, counts: list[int], told: Any, like: Any
    ) -> tuple[Any, Any, list[int]]:
        """Of this rank's experts: rows, where they end (int32), padded rows (none without the
        host)."""
        torch, alignment, padding = self._torch, request.alignment, not request.expand
        if told is not None:
            each = told[2:]
            return each.int(), ends_of(each, alignment, padding=padding).int(), []
        known = np.array(counts, dtype=np.int32)
        both = np.stack([known, ends_of(known, alignment, padding=padding)]).astype(np.int32)
        each, ends = torch.from_numpy(both).to(like.device, non_blocking=True)
        return each, ends, padded(known, alignment).tolist()

    def _place(self, handle: EPHandle, each: Any) -> None:
        torch, total, experts = self._torch, handle.num_expanded_tokens, handle.experts
        handle.places = torch.empty_like(experts)
        handle.rows = torch.empty(total, dtype=torch.int64, device=each.device)
        places.place(
            self._kernels,
            experts.data_ptr(),
            each.data_ptr(),
            handle.places.data_ptr(),
            handle.rows.data_ptr(),
            shape=tuple(experts.shape),
            experts=len(each),
            alignment=handle.expert_alignment,
            total=total,
            stream=torch.cuda.current_stream().cuda_stream,
        )

    def _spread(self, values: Any, scales: Any, weights: Any, handle: EPHandle, zero: bool) -> Any:
        """Values, scales and weights of the rows at their places."""
        total = handle.num_expanded_tokens

        def pair(one: Any) -> tuple[Any, tuple[int, int]]:
            """What is returned, and where both begin."""
            if one is None:
                return None, (0, 0)
            to = one.new_empty((total, *one.shape[1:]) if one is not weights else total)
            return to, (one.data_ptr(), to.data_ptr())

        (out, at), (out_scales, scales_at), (out_weights, weights_at) = map(
            pair, (values, scales, weights)
        )
        places.spread(
            self._kernels,
            at,
            scales_at,
            weights_at,
            handle.places.data_ptr(),
            handle.rows.data_ptr(),
            shape=tuple(handle.places.shape),
            row_bytes=values.shape[1] * values.element_size(),
            scale_bytes=0 if scales is None else scales.shape[1] * scales.element_size(),
            total=total,
            zero=zero,
            stream=self._torch.cuda.current_stream().cuda_stream,
        )
        return out, out_scales, out_weights

    def _summed(self, x: Any, weights: Any, handle: EPHandle, stream: int) -> tuple[Any, Any]:
        """Of each row the sum of its experts' rows, and their weights by choice."""
        sums = x.new_empty((len(handle.places), x.shape[1]))
        back: Any = None if weights is None else weights.new_empty(handle.places.shape)
        places.add_up(
            self._kernels,
            x.data_ptr(),
            sums.data_ptr(),
            (0, 0) if weights is None else (weights.data_ptr(), back.data_ptr()),
            handle.places.data_ptr(),
            shape=tuple(handle.places.shape),
            row_bytes=x.shape[1] * x.element_size(),
            total=len(x),
            stream=stream,
        )
        return sums, back

    def _laid_out(
        self, x: Any, out: Any, weights: Any, handle: EPHandle, zero: bool, columns: bool
    ) -> tuple[Any, Any]:
        """Rows (and scales, of the type that they are sent in) and weights as they are returned."""
        torch = self._torch
        values, scales = out if isinstance(out, tuple) else (out, None)
        if scales is not None:
            scales = scales.view(x[1].dtype)
        if handle.do_expand:
            values, scales, weights = self._spread(values, scales, weights, handle, zero)
        if scales is None:
            return values, weights
        if columns:
            length = padded(len(scales), _SCALES_ALIGNMENT)
            turned = torch.empty(
                (scales.shape[1], length), dtype=scales.dtype, device=scales.device
            ).t()[: len(scales)]
            scales = turned.copy_(scales)
        return (values, scales), weights

    def _after(self, event: Event, other: Event, aside: bool) -> EventOverlap | None:
        """What a call begins after; its stream waits for the other here."""
        waited = _overlap(other)
        if waited is not None and waited.event is not None:
            self._stream(aside).wait_event(waited.event.event)
        return _overlap(event)

    def _stream(self, aside: bool) -> Any:
        return self._order.comm if aside else self._torch.cuda.current_stream()

    def _check(self, x: Any, topk_idx: Any, topk_weights: Any) -> None:
        """Before the other ranks are told of the call: they would wait for what does not come."""
        torch = self._torch
        x, scales = x if isinstance(x, tuple) else (x, None)
        checked_tensor(topk_idx, "topk_idx", torch.int64, (len(x), None))
        if topk_weights is not None:
            wanted = (len(x), topk_idx.shape[1])
            checked_tensor(topk_weights, "topk_weights", torch.float32, wanted)
        if scales is not None and (scales.dim() != 2 or len(scales) != len(x)):
            raise ValueError(f"scales must be shaped [{len(x)}, any], not {list(scales.shape)}")
        if scales is not None and scales.dtype not in (torch.float32, torch.int32):
            raise ValueError(f"scales must be of float32 or int32, not {scales.dtype}")


def _overlap(event: Event) -> EventOverlap | None:
    return EventOverlap(event) if isinstance(event, EventHandle) else event


def _tensors(out: Any) -> tuple[Any, ...]:
    return out if isinstance(out, tuple) else (out,)


def _with_floats(torch: Any, x: Any) -> Any:
    """Scales of any four bytes travel as floats, which nothing calculates with."""
    values, scales = x if isinstance(x, tuple) else (x, None)
    if scales is None or scales.dtype is not torch.int32:
        return x
    return values, scales.view(torch.float32)  # no copy, in rows or in columns
