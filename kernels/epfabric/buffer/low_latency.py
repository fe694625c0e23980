"""The low-latency calls of a Buffer: torch's tensors in and out, the kernels in between."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from epfabric.buffer.event import EventOverlap
from epfabric.buffer.order import Order
from epfabric.buffer.tensors import checked_tensor, sizes_of
from epfabric.cuda.low_latency import RECEIVE, SEND, CombineCall, DispatchCall, LowLatency
from epfabric.cuda.window import SCALE_CHANNELS, Shape
from epfabric.errors import SessionError

Hook = Callable[[], None] | None
_RECEIPT_WORDS = 4
shape_of = lru_cache(maxsize=64)(Shape)


class Handle(tuple[Any, ...]):
    """Source tokens and ranges of the received rows, tokens at most, hidden, experts: what DeepEP's
    handle holds. Beside it what combine needs."""

    shape: Shape
    arrays: dict[str, int]  # addresses in `memory`
    memory: Any


class Places:
    """The small outputs of a dispatch in one tensor of int32: offsets in words."""

    def __init__(self, shape: Shape, count: int) -> None:
        local, world = shape.local_experts, shape.world
        receipt = _RECEIPT_WORDS + 2 * shape.topk
        sizes = {
            "ranges": 2 * local * world,  # of 64 bits: first
            "sent": 2 * count * shape.copies,
            "receipts": world * shape.tokens * receipt,
            "expert_counts": local,
            "source_tokens": local * shape.rows,
            "source_messages": world,
        }
        self.at: dict[str, int] = {}
        self.words = 0
        for name, words in sizes.items():
            self.at[name] = self.words
            self.words += (words + 3) // 4 * 4


places_of = lru_cache(maxsize=256)(Places)


class LowLatencyCalls:
    """Those of one buffer, over its `end`."""

    def __init__(self, end: LowLatency, order: Order) -> None:
        import torch

        self._torch, self.end, self._order = torch, end, order
        self._next_rows: list[Any] = [None, None]
        self._combines = 0

    def dispatch(self, x: Any, topk_idx: Any, tokens: int, experts: int, *, sums: Any, waits: Any,
                 use_fp8: bool, round_scale: bool, use_ue8m0: bool, aside: bool, hooked: bool,
                 ) -> tuple[Any, Any, Handle, EventOverlap, Hook]:  # fmt: skip
        """As Buffer.low_latency_dispatch."""
        torch = self._torch
        self._refuse(aside, hooked)
        if use_ue8m0 and not round_scale:
            raise ValueError("use_ue8m0 needs round_scale=True: exponents say powers of two only")
        source = checked_tensor(x, "x", torch.bfloat16, sizes_of(x))
        count, hidden = x.shape
        choices = checked_tensor(topk_idx, "topk_idx", torch.int64, (count, sizes_of(topk_idx)[1]))
        shape = shape_of(self.end.shape.world, experts, tokens, hidden, topk_idx.shape[1])
        if use_ue8m0 and hidden % (4 * SCALE_CHANNELS):
            raise ValueError(f"use_ue8m0 needs a hidden size of a multiple of 512, not {hidden}")
        local, rows, groups = shape.local_experts, shape.rows, hidden // SCALE_CHANNELS
        kind = torch.float8_e4m3fn if use_fp8 else torch.bfloat16
        received = torch.empty((local, rows, hidden), dtype=kind, device=x.device)
        scales = None
        if use_fp8 and use_ue8m0:
            scales = torch.empty((local, groups // 4, rows), dtype=torch.int32, device=x.device)
        elif use_fp8:
            scales = torch.empty((local, groups, rows), dtype=torch.float32, device=x.device)
        places = places_of(shape, count)
        memory = torch.empty(places.words, dtype=torch.int32, device=x.device)
        first = memory.data_ptr()
        arrays = {name: first + 4 * word for name, word in places.at.items()}
        call = DispatchCall(
            tokens=source,
            topk=choices,
            received=received.data_ptr(),
            scales=scales.data_ptr() if scales is not None else 0,
            sums=self._sums(sums, local),
            waits=self._waits(waits),
            count=count,
            k=shape.topk,
            phases=SEND if hooked else SEND | RECEIVE,
            power_scales=int(round_scale),
            byte_scales=int(use_ue8m0),
            **arrays,
        )
        handle = self._handle(shape, arrays, memory, places)
        stream = self._order.begin(aside)
        self.end.reshape(shape, stream=stream.cuda_stream)
        self.end.dispatch(call, fp8=use_fp8, stream=stream.cuda_stream)
        alive = (x, topk_idx, received, scales, memory, sums, waits)
        event = self._order.end(stream, aside, alive)
        counts = memory.narrow(0, places.at["expert_counts"], local)
        out = (received, scales.transpose(1, 2)) if scales is not None else received
        hook = self._hook(shape, self._dispatch, call, use_fp8, alive) if hooked else None
        return out, counts, handle, event, hook

    def combine(self, x: Any, topk_idx: Any, topk_weights: Any, handle: Handle, *, zero_copy: bool,
                aside: bool, hooked: bool, out: Any, waits: Any,
                ) -> tuple[Any, EventOverlap, Hook]:  # fmt: skip
        """As Buffer.low_latency_combine."""
        torch, shape = self._torch, handle.shape
        self._refuse(aside, hooked)
        if zero_copy:
            x = self.next_rows(handle)
            self._combines += 1
        rows = checked_tensor(
            x, "x", torch.bfloat16, (shape.local_experts, shape.rows, shape.hidden)
        )
        count = len(topk_idx)
        choices = checked_tensor(topk_idx, "topk_idx", torch.int64, (count, shape.topk))
        weights = checked_tensor(topk_weights, "topk_weights", torch.float32, (count, shape.topk))
        # An empty tensor has no address; but that there are weights is so on all ranks or on none.
        weights = weights or handle.memory.data_ptr()
        if out is None:
            out = torch.empty((count, shape.hidden), dtype=torch.bfloat16, device=x.device)
        call = CombineCall(
            rows=rows,
            topk=choices,
            weights=weights,
            combined=checked_tensor(out, "out", torch.bfloat16, (count, shape.hidden)),
            waits=self._waits(waits),
            count=count,
            k=shape.topk,
            phases=SEND if hooked else SEND | RECEIVE,
            **{name: handle.arrays[name] for name in ("sent", "receipts", "source_messages")},
        )
        stream = self._order.begin(aside)
        self.end.reshape(shape, stream=stream.cuda_stream)
        self.end.combine(call, stream=stream.cuda_stream)
        alive = (x, topk_idx, topk_weights, handle.memory, out, waits)
        event = self._order.end(stream, aside, alive)
        hook = self._hook(shape, self._combine, call, False, alive) if hooked else None
        return out, event, hook

    def next_rows(self, handle: Handle) -> Any:
        """Where a combine with zero_copy reads; two in turn, to fill one meanwhile."""
        shape, turn = handle.shape, self._combines % 2
        wanted = (shape.local_experts, shape.rows, shape.hidden)
        found = self._next_rows[turn]
        if found is None or tuple(found.shape) != wanted:
            kind = self._torch.bfloat16
            found = self._torch.empty(wanted, dtype=kind, device=handle.memory.device)
            self._next_rows[turn] = found
        return found

    def _handle(self, shape: Shape, arrays: dict[str, int], memory: Any, places: Places) -> Handle:
        local, world, rows = shape.local_experts, shape.world, shape.rows
        tokens = memory.as_strided((local, rows), (rows, 1), places.at["source_tokens"])
        ranges = memory.view(self._torch.int64).as_strided((local, world), (world, 1), 0)
        handle = Handle((tokens, ranges, shape.tokens, shape.hidden, shape.experts))
        handle.shape, handle.arrays, handle.memory = shape, arrays, memory
        return handle

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
        if sums is None:
            return 0
        name = "cumulative_local_expert_recv_stats"
        return checked_tensor(sums, name, self._torch.int32, (local,))

    def _waits(self, waits: Any) -> int:
        """[ranks], or [ranks, ranks] of which the row of this rank is used."""
        if waits is None:
            return 0
        world, rank = self.end.shape.world, self.end.rank
        shape = (world,) if waits.dim() == 1 else (world, world)
        address = checked_tensor(waits, "the wait statistics", self._torch.int64, shape)
        return address + (8 * world * rank if waits.dim() == 2 else 0)
