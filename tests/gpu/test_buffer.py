"""Buffer's low-latency methods on torch tensors, ranks sharing this GPU, against float64."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="epfabric.Buffer works on torch's tensors")

from epfabric import Buffer, SessionError  # noqa: E402
from gpu.buffer_ranks import (  # noqa: E402
    Batch,
    Ranks,
    buffers,
    check_combined,
    check_received,
    reserve,
)

HIDDEN, EXPERTS, TOKENS, TOPK = 1024, 12, 40, 4
KINDS = {
    "bf16": {"use_fp8": False},
    "fp8": {},
    "powers": {"round_scale": True},
    "ue8m0": {"round_scale": True, "use_ue8m0": True},
}
WAYS = ["plain", "async", "hook"]


def low_latency(world: int = 2, tokens: int = TOKENS, hidden: int = HIDDEN, **options: Any) -> Any:
    size = Buffer.get_low_latency_rdma_size_hint(tokens, hidden, world, EXPERTS)
    return buffers(world, num_rdma_bytes=size, low_latency_mode=True, **options)


def batches_of(ranks: Ranks, tokens: int = TOKENS, hidden: int = HIDDEN) -> list[Batch]:
    seed = secrets.randbits(31)
    print(f"seed {seed}")
    counts = [(seed >> 3 * rank) % (tokens + 1) for rank in range(ranks.world)]
    counts[seed % ranks.world] = tokens
    if seed % 3 == 0 and ranks.world > 1:
        counts[(seed + 1) % ranks.world] = 0
    made = [
        Batch.random(seed + rank, count, hidden, EXPERTS, TOPK) for rank, count in enumerate(counts)
    ]
    torch.cuda.synchronize()
    return made


def finish(result: tuple[Any, ...], way: str) -> tuple[Any, ...]:
    """Waits as `way` says; without it the outputs are not there."""
    *_, event, hook = result
    if way == "async":
        event.current_stream_wait()
    elif way == "hook":
        hook()
    return result


def options_of(way: str) -> dict[str, bool]:
    return {"async_finish": way == "async", "return_recv_hook": way == "hook"}


def round_trip(
    ranks: Ranks, kind: str = "bf16", way: str = "plain", zero_copy: bool = False,
    tokens: int = TOKENS, hidden: int = HIDDEN,
) -> None:  # fmt: skip
    batches = batches_of(ranks, tokens, hidden)

    def dispatch(rank: int) -> Any:
        buffer, batch = ranks.buffers[rank], batches[rank]
        return finish(
            buffer.low_latency_dispatch(
                batch.x, batch.topk, tokens, EXPERTS, **KINDS[kind], **options_of(way)
            ),
            way,
        )

    received = ranks.each(dispatch)
    check_received(batches, received, EXPERTS)
    shape = (EXPERTS // ranks.world, ranks.world * tokens, hidden)
    made = [torch.randn(shape, device="cuda").bfloat16() for _ in batches]
    outs = [torch.full_like(batch.x, float("nan")) for batch in batches]
    rows = list(made)
    if zero_copy:
        both = zip(ranks.buffers, received, strict=True)
        rows = [buffer.get_next_low_latency_combine_buffer(out[2]) for buffer, out in both]
        for target, source in zip(rows, made, strict=True):
            target.copy_(source)
    torch.cuda.synchronize()

    def combine(rank: int) -> Any:
        buffer, batch, handle = ranks.buffers[rank], batches[rank], received[rank][2]
        result = buffer.low_latency_combine(
            rows[rank], batch.topk, batch.weights, handle, zero_copy=zero_copy, out=outs[rank],
            **options_of(way),
        )  # fmt: skip
        return finish(result, way)[0]

    combined = ranks.each(combine)
    assert all(one is out for one, out in zip(combined, outs, strict=True))
    check_combined(batches, received, made, combined, EXPERTS)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_come_back_as_the_weighted_sum(kind: str, way: str) -> None:
    with low_latency() as ranks:
        for call in range(6):
            round_trip(ranks, kind, way, zero_copy=call % 2 == 1)


def test_the_ways_may_be_mixed_and_the_shape_may_change() -> None:
    with low_latency(3, tokens=64, hidden=2048) as ranks:
        for tokens, hidden in ((64, 2048), (7, 512), (33, 1024)):
            for way in WAYS:
                round_trip(ranks, "fp8", way, tokens=tokens, hidden=hidden)


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


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_a_graph_is_replayed_with_changing_routing(way: str, calls: int) -> None:
    with low_latency() as ranks:
        round_trip(ranks)
        batches = [Batch.random(rank, TOKENS, HIDDEN, EXPERTS, TOPK) for rank in range(2)]
        torch.cuda.synchronize()
        graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
        shape = (EXPERTS // 2, 2 * TOKENS, HIDDEN)
        made = [torch.randn(shape, device="cuda").bfloat16() for _ in range(2)]
        combined = [torch.empty_like(batch.x) for batch in batches]
        received: list[Any] = [None, None]
        for rank in range(2):  # one after the other: only one thread may capture at a time
            buffer, batch = ranks.buffers[rank], batches[rank]
            with torch.cuda.graph(graphs[rank], stream=ranks.streams[rank]):
                for _ in range(calls):
                    received[rank] = finish(
                        buffer.low_latency_dispatch(
                            batch.x, batch.topk, TOKENS, EXPERTS, use_fp8=False, **options_of(way)
                        ),
                        way,
                    )
                    finish(
                        buffer.low_latency_combine(
                            made[rank], batch.topk, batch.weights, received[rank][2],
                            out=combined[rank], **options_of(way),
                        ),
                        way,
                    )  # fmt: skip
        ranks.each(lambda _: reserve())  # a capture gives torch's spare memory back
        for replay in range(2000):
            if replay % 100 == 0:
                ranks.each(lambda rank: graphs[rank].replay())
                check_received(batches, received, EXPERTS)
                check_combined(batches, received, made, combined, EXPERTS)
                round_trip(ranks)  # without a graph, in between
                for batch in batches:
                    fresh = Batch.random(secrets.randbits(31), TOKENS, HIDDEN, EXPERTS, TOPK)
                    batch.x.copy_(fresh.x)
                    batch.topk.copy_(fresh.topk)
                torch.cuda.synchronize()
            for graph, stream in zip(graphs, ranks.streams, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()


def test_a_lost_rank_is_masked_and_the_others_go_on() -> None:
    with low_latency(3, timeout_s=2.0, enable_shrink=True) as ranks:
        status = [torch.full((3,), 7, dtype=torch.int32, device="cuda") for _ in range(3)]
        batches = [Batch.random(rank, TOKENS, HIDDEN, EXPERTS, TOPK) for rank in range(3)]
        torch.cuda.synchronize()

        def call(rank: int) -> Any:
            if rank == 1:
                return None
            buffer, batch = ranks.buffers[rank], batches[rank]
            out = buffer.low_latency_dispatch(batch.x, batch.topk, TOKENS, EXPERTS, use_fp8=False)
            buffer.low_latency_query_mask_buffer(status[rank])
            return out

        received = ranks.each(call)
        assert status[0].tolist() == status[2].tolist() == [0, 1, 0]
        assert (received[0][2][1][:, 1] & 0xFFFFFFFF == 0).all()

        def clean(rank: int) -> None:
            buffer = ranks.buffers[rank]
            buffer.low_latency_clean_mask_buffer()
            buffer.low_latency_update_mask_buffer(2 - rank, True)
            buffer.low_latency_query_mask_buffer(status[rank])

        ranks.each(clean)
        assert [one.tolist() for one in status] == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]


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
        with pytest.raises(NotImplementedError, match="not there yet"):
            buffer.internode_combine(batch.x, ())
