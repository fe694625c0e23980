"""Buffer's low-latency methods on torch tensors, ranks sharing this GPU, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="epfabric.Buffer works on torch's tensors")

from epfabric import SessionError  # noqa: E402
from gpu.buffer_ranks import (  # noqa: E402
    Batch,
    Size,
    check_received,
)
from gpu.buffer_trips import (  # noqa: E402
    EXPERTS,
    HIDDEN,
    KINDS,
    SIZE,
    TOKENS,
    TOPK,
    WAYS,
    batches_of,
    low_latency,
    round_trip,
)

CORNERS = [
    (2, Size(tokens=4096, hidden=8192, experts=8, topk=1)),
    (2, Size(tokens=1, hidden=2048, experts=64, topk=16)),
    (4, Size(tokens=24, hidden=8192, experts=1024, topk=16)),
    (5, Size(tokens=256, hidden=2048, experts=20, topk=3)),
    (7, Size(tokens=64, hidden=4096, experts=56, topk=6)),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_come_back_as_the_weighted_sum(kind: str, way: str) -> None:
    with low_latency() as ranks:
        for call in range(6):
            round_trip(ranks, kind, way, zero_copy=call % 2 == 1)


def test_the_ways_may_be_mixed_and_the_shape_may_change() -> None:
    largest = replace(SIZE, tokens=64, hidden=2048)
    with low_latency(3, largest) as ranks:
        for tokens, hidden in ((64, 2048), (7, 512), (33, 1024)):
            for way in WAYS:
                round_trip(ranks, "fp8", way, size=replace(SIZE, tokens=tokens, hidden=hidden))


def test_two_buffers_take_turns_and_two_batches_overlap_on_one() -> None:
    with low_latency() as one, low_latency() as other:
        round_trip(one)
        round_trip(other, "fp8")
        first, second = batches_of(one), batches_of(one)

        def call(rank: int) -> list[Any]:
            buffer = one.buffers[rank]
            both = [
                buffer.low_latency_dispatch(
                    batch.x, batch.topk, TOKENS, EXPERTS, use_fp8=False, return_recv_hook=True
                )
                for batch in (first[rank], second[rank])
            ]
            for result in both:
                result[4]()
            return both

        received = one.each(call)
        for which, batches in enumerate((first, second)):
            check_received(batches, [both[which] for both in received], EXPERTS)


def test_statistics_add_up() -> None:
    with low_latency() as ranks:
        batches = batches_of(ranks)
        local = EXPERTS // 2
        kinds = [(local, torch.int32), (2, torch.int64), ((2, 2), torch.int64)]
        stats = [[torch.zeros(n, dtype=kind, device="cuda") for n, kind in kinds] for _ in range(2)]
        torch.cuda.synchronize()

        def call(rank: int) -> Any:
            buffer, batch, (sums, waits, table) = ranks.buffers[rank], batches[rank], stats[rank]
            for _ in range(3):
                out = buffer.low_latency_dispatch(
                    batch.x, batch.topk, TOKENS, EXPERTS, sums, waits, use_fp8=False
                )
                buffer.low_latency_combine(
                    out[0], batch.topk, batch.weights, out[2], combine_wait_recv_cost_stats=table
                )
            return out

        received = ranks.each(call)
        for rank, (sums, waits, table) in enumerate(stats):
            assert torch.equal(sums, 3 * received[rank][1])
            assert ((waits > 0) & (waits < 20e9)).all()
            assert (table[rank] > 0).all()
            assert (table[1 - rank] == 0).all()


@pytest.mark.parametrize(("world", "size"), CORNERS, ids=lambda v: str(v).replace(" ", ""))
def test_the_edges_of_what_a_buffer_takes(world: int, size: Size) -> None:
    with low_latency(world, size) as ranks:
        for kind in ("bf16", "fp8"):
            round_trip(ranks, kind, size=size)


def test_a_rank_that_does_not_come_fails_the_buffer_and_the_next_call_says_so() -> None:
    with low_latency(timeout_s=0.3) as ranks:
        batch = batches_of(ranks)[0]

        def call(_: int) -> None:
            ranks.buffers[0].low_latency_dispatch(batch.x, batch.topk, TOKENS, EXPERTS)
            torch.cuda.current_stream().synchronize()
            with pytest.raises(SessionError, match="waited in vain for tokens of rank 1"):
                ranks.buffers[0].low_latency_dispatch(batch.x, batch.topk, TOKENS, EXPERTS)

        ranks.each(lambda rank: call(rank) if rank == 0 else None)


def test_layout_counts_and_raw_memory() -> None:
    with low_latency() as ranks:
        batches = batches_of(ranks)
        results = ranks.each(
            lambda rank: ranks.buffers[rank].get_dispatch_layout(batches[rank].topk, EXPERTS)
        )
        for batch, (by_rank, by_node, by_expert, in_rank, _) in zip(batches, results, strict=True):
            chosen = (batch.topk[:, :, None] == torch.arange(EXPERTS, device="cuda")).any(dim=1)
            assert by_node is None
            assert torch.equal(by_expert, chosen.sum(dim=0, dtype=torch.int32))
            assert torch.equal(in_rank, chosen.view(-1, 2, EXPERTS // 2).any(dim=2))
            assert torch.equal(by_rank, in_rank.sum(dim=0, dtype=torch.int32))
        raw = ranks.buffers[0].get_local_buffer_tensor(
            torch.float32, torch.Size([4, 8]), offset=1 << 10, use_rdma_buffer=True
        )
        raw.fill_(3.0)
        again = ranks.buffers[0].get_local_buffer_tensor(torch.float32, use_rdma_buffer=True)
        assert (again[1 << 10 : (1 << 10) + 32] == 3.0).all()


def test_what_cannot_be_is_refused_with_its_reason() -> None:
    with low_latency() as ranks:
        buffer = ranks.buffers[0]
        batch = Batch.random(1, TOKENS, HIDDEN, EXPERTS, TOPK)
        good = {"x": batch.x, "topk_idx": batch.topk}
        good |= {"num_max_dispatch_tokens_per_rank": TOKENS, "num_experts": EXPERTS}
        for change, error, text in [
            ({"x": batch.x.float()}, ValueError, "x must be of torch.bfloat16"),
            ({"x": batch.x.t()}, ValueError, "x must be contiguous"),
            ({"topk_idx": batch.topk[1:]}, ValueError, "topk_idx must be shaped"),
            ({"num_experts": 15}, ValueError, "15 experts do not spread evenly"),
            ({"num_max_dispatch_tokens_per_rank": 4000}, SessionError, "needs .* bytes"),
            ({"num_max_dispatch_tokens_per_rank": 3}, SessionError, "made for 3"),
            ({"use_ue8m0": True}, ValueError, "round_scale"),
            ({"async_finish": True, "return_recv_hook": True}, ValueError, "exclude each other"),
        ]:
            with pytest.raises(error, match=text):
                buffer.low_latency_dispatch(**good | change)
        with pytest.raises(ValueError, match="enable_shrink"):
            buffer.low_latency_clean_mask_buffer()
