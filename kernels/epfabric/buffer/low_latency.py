"""The low-latency calls of a Buffer: torch's tensors in and out, the kernels in between."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from epfabric.buffer.event import EventOverlap
from epfabric.buffer.order import Order
from epfabric.buffer.tensors import checked_tensor, quick_tensors, sizes_of
from epfabric.cuda.low_latency import RECEIVE, SEND, CombineCall, DispatchCall, LowLatency
from epfabric.cuda.window import SCALE_CHANNELS, Shape
from epfabric.errors import SessionError

Hook = Callable[[], None] | None
_RECEIPT_WORDS = 4
# All fields of a call at once: one by one they take microseconds.
_DISPATCH, _COMBINE = struct.Struct("=13Q5I"), struct.Struct("=8Q3I")


class Plan:
    """What follows from the sizes of a dispatch: its shape, lengths and strides of what comes out,
    and where in one tensor of int32 the small outputs lie (offsets in bytes)."""

    def __init__(
        self, world: int, experts: int, tokens: int, hidden: int, topk: int, count: int
    ) -> None:
        shape = self.shape = Shape(world, experts, tokens, hidden, topk)
        local, rows, groups = shape.local_experts, shape.rows, hidden // SCALE_CHANNELS
        self.local = local
        # Scales are handed out by row, and lie by channel.
        self.received = (local, rows, hidden), (rows * hidden, hidden, 1)
        self.floats = (local, rows, groups), (groups * rows, 1, rows)
        self.exponents = (local, rows, groups // 4), (groups // 4 * rows, 1, rows)
        self.tokens = (local, rows), (rows, 1)
        self.pairs = (local, world), (world, 1)
        self.each = (local,), (1,)
        sizes = (
            2 * local * world,  # of 64 bits: first
            2 * count * shape.copies,
            world * tokens * (_RECEIPT_WORDS + 2 * topk),
            local,
            local * rows,
            world,
        )
        places = [0]
        for words in sizes:
            places.append(places[-1] + (words + 3) // 4 * 16)
        (
            self.ranges, self.sent, self.receipts, self.expert_counts, self.source_tokens,
            self.source_messages, end,
        ) = places  # fmt: skip
        self.words = end // 4


plan_of = lru_cache(maxsize=256)(Plan)


class Handle(tuple[Any, ...]):
    """Source tokens and ranges of the received rows, tokens at most, hidden, experts: what DeepEP's
    handle holds. Combine needs what is beside it only, so that these are made when somebody looks.
    """

    plan: Plan
    memory: Any
    _made: tuple[Any, ...] = ()

    def look(self) -> tuple[Any, ...]:
        if not self._made:
            import torch

            plan, memory = self.plan, self.memory
            tokens = memory.as_strided(*plan.tokens, plan.source_tokens // 4)
            ranges = memory.view(torch.int64).as_strided(*plan.pairs, plan.ranges // 8)
            shape = plan.shape
            self._made = (tokens, ranges, shape.tokens, shape.hidden, shape.experts)
        return self._made

    def __iter__(self) -> Iterator[Any]:
        return iter(self.look())

    def __getitem__(self, which: Any) -> Any:
        return self.look()[which]


class LowLatencyCalls:
    """Those of one buffer, over its `end`."""

    def __init__(self, end: LowLatency, order: Order) -> None:
        import torch

        self._torch, self.end, self._order = torch, end, order
        self._next_rows: list[Any] = [None, None]
        self._combines = 0
        self._empty, self._view = quick_tensors()

    def dispatch(self, x: Any, topk_idx: Any, tokens: int, experts: int, *, sums: Any, waits: Any,
                 use_fp8: bool, round_scale: bool, use_ue8m0: bool, aside: bool, hooked: bool,
                 ) -> tuple[Any, Any, Handle, EventOverlap, Hook]:  # fmt: skip
        """As Buffer.low_latency_dispatch."""
        torch = self._torch
        self._refuse(aside, hooked)
        if use_ue8m0 and not round_scale:
            raise ValueError("use_ue8m0 needs round_scale=True: exponents say powers of two only")
        count, hidden = sizes_of(x)
        source = checked_tensor(x, "x", torch.bfloat16, (count, hidden))
        topk = sizes_of(topk_idx)[1]
        choices = checked_tensor(topk_idx, "topk_idx", torch.int64, (count, topk))
        plan = plan_of(self.end.shape.world, experts, tokens, hidden, topk, count)
        if use_ue8m0 and hidden % (4 * SCALE_CHANNELS):
            raise ValueError(f"use_ue8m0 needs a hidden size of a multiple of 512, not {hidden}")
        scales = None
        kind = torch.float8_e4m3fn if use_fp8 else torch.bfloat16
        received = self._empty(*plan.received, kind)
        if use_fp8 and use_ue8m0:
            scales = self._empty(*plan.exponents, torch.int32)
        elif use_fp8:
            scales = self._empty(*plan.floats, torch.float32)
        memory = self._empty((plan.words,), (1,), torch.int32)
        first = memory.data_ptr()
        call = self.end.next_dispatch
        _DISPATCH.pack_into(
            call,
            0,
            source,
            choices,
            0,  # no weights
            first + plan.sent,
            received.data_ptr(),
            scales.data_ptr() if scales is not None else 0,
            first + plan.expert_counts,
            first + plan.source_tokens,
            first + plan.ranges,
            first + plan.receipts,
            first + plan.source_messages,
            self._sums(sums, plan.local) if sums is not None else 0,
            self._waits(waits) if waits is not None else 0,
            count,
            topk,
            SEND if hooked else SEND | RECEIVE,
            int(round_scale),
            int(use_ue8m0),
        )
        stream = self._order.begin(aside)
        handle_of_stream = stream.cuda_stream
        self.end.reshape(plan.shape, stream=handle_of_stream)
        self.end.dispatch(call, fp8=use_fp8, stream=handle_of_stream)
        alive = (x, topk_idx, received, scales, memory, sums, waits) if aside or hooked else ()
        event = self._order.end(stream, aside, alive)
        handle = Handle((None,) * 5)
        handle.plan, handle.memory = plan, memory
        counts = self._view(memory, *plan.each, plan.expert_counts // 4)
        out = (received, scales) if use_fp8 else received
        hook = None
        if hooked:
            again = DispatchCall.from_buffer_copy(call)
            hook = self._hook(plan.shape, self._dispatch, again, use_fp8, alive)
        return out, counts, handle, event, hook

    def combine(self, x: Any, topk_idx: Any, topk_weights: Any, handle: Handle, *, zero_copy: bool,
                aside: bool, hooked: bool, out: Any, waits: Any,
                ) -> tuple[Any, EventOverlap, Hook]:  # fmt: skip
        """As Buffer.low_latency_combine."""
        torch, plan = self._torch, handle.plan
        shape = plan.shape
        self._refuse(aside, hooked)
        if zero_copy:
            x = self.next_rows(handle)
            self._combines += 1
        rows = checked_tensor(x, "x", torch.bfloat16, plan.received[0])
        count = topk_idx.shape[0]
        named = (count, shape.topk)
        choices = checked_tensor(topk_idx, "topk_idx", torch.int64, named)
        weights = checked_tensor(topk_weights, "topk_weights", torch.float32, named)
        memory = handle.memory.data_ptr()
        # An empty tensor has no address; but that there are weights is so on all ranks or on none.
        weights = weights or memory
        sizes = (count, shape.hidden)
        if out is None:
            out = self._empty(sizes, (shape.hidden, 1), torch.bfloat16)
            combined = out.data_ptr()
        else:
            combined = checked_tensor(out, "out", torch.bfloat16, sizes)
        call = self.end.next_combine
        _COMBINE.pack_into(
            call,
            0,
            rows,
            choices,
            weights,
            memory + plan.sent,
            memory + plan.receipts,
            memory + plan.source_messages,
            combined,
            self._waits(waits) if waits is not None else 0,
            count,
            shape.topk,
            SEND if hooked else SEND | RECEIVE,
        )
        stream = self._order.begin(aside)
        handle_of_stream = stream.cuda_stream
        self.end.reshape(shape, stream=handle_of_stream)
        self.end.combine(call, stream=handle_of_stream)
        alive = (x, topk_idx, topk_weights, handle.memory, out, waits) if aside or hooked else ()
        event = self._order.end(stream, aside, alive)
        hook = None
        if hooked:
            again = CombineCall.from_buffer_copy(call)
            hook = self._hook(shape, self._combine, again, False, alive)
        return out, event, hook

    def next_rows(self, handle: Handle) -> Any:
        """Where a combine with zero_copy reads; two in turn, to fill one meanwhile."""
        wanted, turn = handle.plan.received[0], self._combines % 2
        found = self._next_rows[turn]
        if found is None or tuple(found.shape) != wanted:
            kind = self._torch.bfloat16
            found = self._torch.empty(wanted, dtype=kind, device=handle.memory.device)
            self._next_rows[turn] = found
        return found

    def _hook(
        self, shape: Shape, launch: Any, call: Any, fp8: bool, alive: Any
    ) -> Callable[[], None]:
        """Receives; may be called once. It keeps the tensors alive until then."""
        waiting = [alive]

        def receive() -> None:
            if not waiting:
                raise ValueError("this hook was called before")
            waiting.clear()
            if shape != self.end.shape:
                raise ValueError(
                    f"calls of {self.end.shape} were made before this hook of {shape}: receive "
                    "what is under way before the shape changes"
                )
            call.phases = RECEIVE
            stream = self._order.begin(False)
            launch(call, fp8, stream.cuda_stream)
            self._order.end(stream, False)

        return receive

    def _dispatch(self, call: DispatchCall, fp8: bool, stream: int) -> None:
        self.end.dispatch(call, fp8=fp8, stream=stream)

    def _combine(self, call: CombineCall, _: bool, stream: int) -> None:
        self.end.combine(call, stream=stream)

    def _refuse(self, aside: bool, hooked: bool) -> None:
        if aside and hooked:
            raise ValueError("async_finish and return_recv_hook exclude each other: choose one")
        why = self.end.failure()
        if why is not None:
            raise SessionError(f"the buffer has failed: {why}; make a new one")

    def _sums(self, sums: Any, local: int) -> int:
        name = "cumulative_local_expert_recv_stats"
        return checked_tensor(sums, name, self._torch.int32, (local,))

    def _waits(self, waits: Any) -> int:
        """[ranks], or [ranks, ranks] of which the row of this rank is used."""
        world, rank = self.end.shape.world, self.end.rank
        shape = (world,) if waits.dim() == 1 else (world, world)
        address = checked_tensor(waits, "the wait statistics", self._torch.int64, shape)
        return address + (8 * world * rank if waits.dim() == 2 else 0)
