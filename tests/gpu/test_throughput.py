"""Buffer's dispatch and combine within a node, ranks sharing this GPU, against float64."""

from __future__ import annotations

import ctypes
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="epfabric.Buffer works on torch's tensors")

from cuda.bindings import driver  # noqa: E402
from epfabric import SessionError  # noqa: E402
from epfabric.buffer import Config  # noqa: E402
from epfabric.cuda import channels  # noqa: E402
from epfabric.cuda.kernels import Kernels  # noqa: E402
from epfabric.cuda.rank import checked  # noqa: E402
from gpu.buffer_ranks import Batch, Ranks, buffers, reserve  # noqa: E402
from gpu.expert_ranks import Array  # noqa: E402
from harness.device import Gpu  # noqa: E402


@dataclass(frozen=True)
class Case:
    world: int
    tokens: int
    hidden: int
    experts: int
    k: int
    config: Config

    def open(self, **options: Any) -> Any:
        nbytes = self.config.get_nvl_buffer_size_hint(2 * self.hidden, self.world)
        return buffers(self.world, num_nvl_bytes=nbytes, **options)

    def batches(self) -> list[Batch]:
        seed = secrets.randbits(31)
        print(f"seed {seed}")
        counts = [(seed >> 3 * rank) % (self.tokens + 1) for rank in range(self.world)]
        counts[seed % self.world] = self.tokens
        if seed % 3 == 0:
            counts[(seed + 1) % self.world] = 0
        if seed % 5 == 0:
            counts = [0] * self.world
        made = [
            Batch.random(seed + rank, count, self.hidden, self.experts, self.k)
            for rank, count in enumerate(counts)
        ]
        if seed % 4 == 0:
            made[0].topk[:] = -1  # has tokens, and sends none
        torch.cuda.synchronize()
        return made


REPLAYS, CHECKED, BATCHES = 10_000, 100, 6  # of graphs; others are looked at at random too
WIDE = Config(16)
NARROW = Config(4, 2, 5)  # rings go round many times
CASES = [
    Case(1, 50, 256, 4, 2, WIDE),
    Case(2, 600, 7168, 64, 8, Config(20)),
    Case(2, 300, 512, 8, 2, NARROW),
    Case(3, 100, 2048, 48, 6, WIDE),
    Case(2, 4096, 8192, 64, 8, Config(20)),
    Case(4, 90, 8192, 1024, 16, Config(32)),
    Case(5, 64, 4096, 40, 1, NARROW),
    Case(7, 40, 2048, 21, 3, Config(18)),
    Case(8, 130, 1024, 256, 16, WIDE),
    Case(8, 70, 256, 16, 4, NARROW),
]
cases = pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c.world}-{c.tokens}-{c.hidden}-{c.config.num_sms}"
)


def scaled(batch: Batch) -> tuple[Any, Any]:
    """As 8-bit floats with a scale for 128 channels."""
    groups = batch.x.float().view(len(batch.x), batch.x.shape[1] // 128, 128)
    scales = groups.abs().amax(dim=2).clamp(1e-4) / 448
    codes = (groups / scales[:, :, None]).to(torch.float8_e4m3fn).view(batch.x.shape)
    return codes, scales


def wanted_rows(values: list[Any], flags: list[Any], rank: int) -> Any:
    """What must come to `rank` of what each rank has: by source, in the order of its tokens."""
    return torch.cat([value[flag[:, rank]] for value, flag in zip(values, flags, strict=True)])


def same(one: Any, other: Any) -> bool:
    return bool(torch.equal(one.view(torch.uint8), other.view(torch.uint8)))


def check_received(case: Case, batches: list[Batch], inputs: list[Any], flags: list[Any],
                   results: list[Any], alignment: int, worst: int) -> None:  # fmt: skip
    local = case.experts // case.world
    for rank, (out, topk, weights, counts, *_) in enumerate(results):
        firsts = [one if isinstance(one, tuple) else (one,) for one in inputs]
        outs = out if isinstance(out, tuple) else (out,)
        rows = int(sum(flag[:, rank].sum() for flag in flags))
        for which, found in enumerate(outs):
            wanted = wanted_rows([one[which] for one in firsts], flags, rank)
            assert len(found) == (worst or rows)
            assert same(found[:rows].contiguous(), wanted.contiguous())
        named = wanted_rows([batch.topk for batch in batches], flags, rank) - rank * local
        here = (named >= 0) & (named < local)
        assert torch.equal(topk[:rows], torch.where(here, named, -1))
        assert (topk[rows:] == -1).all()
        sent = wanted_rows([batch.weights for batch in batches], flags, rank)
        assert torch.equal(weights[:rows], torch.where(here, sent, 0.0))
        if not worst:
            each = [int((named == expert).any(dim=1).sum()) for expert in range(local)]
            assert counts == [-(-one // alignment) * alignment for one in each]


def check_combined(batches: list[Batch], flags: list[Any], made: list[Any], results: list[Any],
                   weights: list[Any], biases: list[tuple[Any, ...]]) -> None:  # fmt: skip
    """made, weights: rows that each rank sent back, and their weights."""
    for source, (batch, flag) in enumerate(zip(batches, flags, strict=True)):
        total = sum((one.double() for one in biases[source]), torch.zeros_like(batch.x).double())
        size = sum((one.double().abs() for one in biases[source]), torch.zeros_like(total))
        sums = torch.zeros_like(batch.weights).double()
        for rank in range(len(batches)):
            before = int(sum(one[:, rank].sum() for one in flags[:source]))
            tokens = flag[:, rank].nonzero().flatten()
            rows = slice(before, before + len(tokens))
            total.index_add_(0, tokens, made[rank][rows].double())
            size.index_add_(0, tokens, made[rank][rows].double().abs())
            sums.index_add_(0, tokens, weights[rank][rows].double())
        combined, combined_weights, _ = results[source]
        assert ((combined.double() - total).abs() <= size * 2.0**-7 + 1e-30).all()
        assert ((combined_weights.double() - sums).abs() <= sums.abs() * 1e-6).all()


def round_trip(case: Case, ranks: Ranks, fp8: bool = False, aside: bool = False,
               worst: int = 0, alignment: int = 1, cached: bool = False) -> None:  # fmt: skip
    batches = case.batches()
    inputs = [scaled(batch) if fp8 else batch.x for batch in batches]
    flags: list[Any] = [None] * case.world
    torch.cuda.synchronize()
    ranks.each(lambda _: reserve((64 << 20) + 16 * case.world * case.tokens * case.hidden))

    def dispatch(rank: int) -> Any:
        buffer, batch = ranks.buffers[rank], batches[rank]
        by_rank, _, by_expert, flags[rank], event = buffer.get_dispatch_layout(
            batch.topk, case.experts, async_finish=aside
        )
        result = buffer.dispatch(
            inputs[rank], num_tokens_per_rank=by_rank, is_token_in_rank=flags[rank],
            num_tokens_per_expert=by_expert, topk_idx=batch.topk, topk_weights=batch.weights,
            expert_alignment=alignment, num_worst_tokens=worst, config=case.config,
            previous_event=event, async_finish=aside,
        )  # fmt: skip
        if aside:
            result[5].current_stream_wait()
        return result

    results = ranks.each(dispatch)
    check_received(case, batches, inputs, flags, results, alignment, worst)
    handles = [result[4] for result in results]
    if cached:
        inputs = [torch.randn_like(batch.x) for batch in batches]
        torch.cuda.synchronize()
        again = ranks.each(
            lambda rank: ranks.buffers[rank].dispatch(
                inputs[rank], handle=handles[rank], config=case.config
            )
        )
        for rank, (out, *rest, _) in enumerate(again):
            assert rest == [None] * 4
            wanted = wanted_rows(inputs, flags, rank)
            assert same(out[: len(wanted)], wanted)
    made = [torch.randn(len(one[1]), case.hidden, device="cuda").bfloat16() for one in results]
    biases = [tuple(torch.randn_like(b.x) for _ in range(n % 3)) for n, b in enumerate(batches)]
    torch.cuda.synchronize()

    def combine(rank: int) -> Any:
        bias = biases[rank] if len(biases[rank]) == 2 else (*biases[rank], None)[0]
        result = ranks.buffers[rank].combine(
            made[rank], handles[rank], topk_weights=results[rank][2], bias=bias,
            config=case.config, async_finish=aside,
        )  # fmt: skip
        if aside:
            result[2].current_stream_wait()
        return result

    combined = ranks.each(combine)
    check_combined(batches, flags, made, combined, [one[2] for one in results], biases)


@cases
def test_tokens_come_in_order_and_their_rows_come_back_summed(case: Case) -> None:
    with case.open() as ranks:
        for call in range(6):
            worst = case.world * case.tokens if call % 3 == 2 else 0
            round_trip(case, ranks, fp8=call % 2 == 1, aside=call > 2, worst=worst,
                       alignment=(1, 8)[call % 2], cached=call in (1, 2))  # fmt: skip


class Replayed:
    """A rank's graph of layouts, dispatches and combines, and the batches that its replays take."""

    def __init__(self, case: Case, ranks: Ranks, rank: int, seed: int) -> None:
        self.case, self.buffer, self.stream = case, ranks.buffers[rank], ranks.streams[rank]
        made = [
            Batch.random(seed + 10 * number + rank, case.tokens, case.hidden, case.experts, case.k)
            for number in range(BATCHES)
        ]
        made[1].topk.fill_(-1)  # sends nothing
        self.stored, self.now = made, made[0]
        self.batch = Batch(*(value.clone() for value in vars(made[0]).values()))
        self.graph = torch.cuda.CUDAGraph()
        self.flags: Any = None
        self.result: Any = None
        self.combined: Any = None

    def capture(self, calls: int, worst: int) -> None:
        buffer, batch, config = self.buffer, self.batch, self.case.config
        with torch.cuda.graph(self.graph, stream=self.stream):
            for _ in range(calls):
                by_rank, _, by_expert, self.flags, _ = buffer.get_dispatch_layout(
                    batch.topk, self.case.experts
                )
                self.result = buffer.dispatch(
                    batch.x, num_tokens_per_rank=by_rank, is_token_in_rank=self.flags,
                    num_tokens_per_expert=by_expert, topk_idx=batch.topk,
                    topk_weights=batch.weights, num_worst_tokens=worst, config=config,
                )  # fmt: skip
                self.combined = buffer.combine(
                    self.result[0], self.result[4], topk_weights=self.result[2], config=config
                )

    def replay(self, number: int) -> None:
        """Copies on the stream, without a kernel of torch."""
        self.now = self.stored[number]
        with torch.cuda.stream(self.stream):
            pairs = zip(vars(self.batch).values(), vars(self.now).values(), strict=True)
            for target, source in pairs:
                target.copy_(source)
            self.graph.replay()

    def poison(self) -> None:
        for tensor in (self.result[0], self.result[2], *self.combined[:2]):
            tensor.fill_(float("nan"))
        self.result[1].fill_(7)


@pytest.mark.parametrize("calls", [1, 2])
def test_a_graph_of_dispatch_and_combine_is_replayed(calls: int) -> None:
    seed = secrets.randbits(31)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    case = Case(2, 100, 1024, 16, 4, Config(20))
    worst = 2 * case.tokens
    with case.open() as ranks:
        round_trip(case, ranks)
        sides = [Replayed(case, ranks, rank, seed) for rank in range(2)]
        for side in sides:
            side.capture(calls, worst)
        ranks.each(lambda _: reserve())  # a capture gives torch's spare memory back
        looks = list(range(CHECKED - 1, REPLAYS, CHECKED))
        looks += rng.integers(0, REPLAYS, 20).tolist()
        for replay in range(REPLAYS):
            if replay in looks:
                torch.cuda.synchronize()
                for side in sides:
                    side.poison()
                torch.cuda.synchronize()
            for side in sides:
                side.replay(int(rng.integers(BATCHES)))
            if replay in looks:
                torch.cuda.synchronize()
                check_replay(case, sides, worst)
            if replay in looks[::5]:
                round_trip(case, ranks, fp8=looks.index(replay) % 2 == 1)  # without a graph
        torch.cuda.synchronize()


def check_replay(case: Case, sides: list[Replayed], worst: int) -> None:
    batches, flags = [side.now for side in sides], [side.flags for side in sides]
    results, combined = [side.result for side in sides], [side.combined for side in sides]
    check_received(case, batches, [b.x for b in batches], flags, results, 1, worst)
    rows, weights = [one[0] for one in results], [one[2] for one in results]
    check_combined(batches, flags, rows, combined, weights, [()] * case.world)


def test_a_rank_that_does_not_come_fails_the_buffer_and_says_so() -> None:
    case = CASES[2]
    with case.open(timeout_s=0.3) as ranks:
        batch = case.batches()[0]

        def call(rank: int) -> None:
            if rank != 0:
                return
            buffer = ranks.buffers[0]
            by_rank, _, by_expert, flags, _ = buffer.get_dispatch_layout(batch.topk, case.experts)
            for _ in range(2):
                with pytest.raises(SessionError, match="waited in vain for a call of rank 1"):
                    buffer.dispatch(
                        batch.x, num_tokens_per_rank=by_rank, is_token_in_rank=flags,
                        num_tokens_per_expert=by_expert, config=case.config,
                    )  # fmt: skip

        ranks.each(call)


def test_what_cannot_be_is_refused_with_its_reason() -> None:
    case = CASES[0]
    with case.open() as ranks:
        buffer = ranks.buffers[0]
        batch = Batch.random(1, case.tokens, case.hidden, case.experts, case.k)
        by_rank, _, by_expert, flags, _ = buffer.get_dispatch_layout(batch.topk, case.experts)
        good = {"x": batch.x, "num_tokens_per_rank": by_rank, "is_token_in_rank": flags}
        good |= {"num_tokens_per_expert": by_expert, "topk_idx": batch.topk, "config": WIDE}
        for change, error, text in [
            ({"num_tokens_per_rank": None}, ValueError, "get_dispatch_layout"),
            ({"x": batch.x.t()}, ValueError, "contiguous"),
            ({"is_token_in_rank": flags[1:]}, ValueError, "is_token_in_rank must be shaped"),
            ({"config": Config(200)}, SessionError, "64 at most|need .* bytes"),
            ({"handle": object()}, ValueError, "no topk_idx"),
        ]:
            with pytest.raises(error, match=text):
                buffer.dispatch(**good | change)
        with pytest.raises(ValueError, match="low_latency_mode=True"):
            buffer.clean_low_latency_buffer(1, 128, 1)


def test_the_mirrors_equal_the_compiled_ones(gpu: Gpu) -> None:
    kernels = Kernels(channels.SOURCE)
    for shape in [(8, 10, 256, 8, 56, 7168), (2, 1, 4, 0, 0, 16), (64, 64, 5, 3, 7, 512)]:
        out = Array((16,), np.uint64)
        kernels.launch("channels_mirror", 1, 0, (ctypes.c_uint32 * 6)(*shape),
                       ctypes.c_uint64(out.address))  # fmt: skip
        checked(driver.cuCtxSynchronize())
        found = [int(value) for value in out.read()]
        out.close()
        ours = channels.ChannelShape(*shape)
        structures = [channels.ChannelBuffer, channels.MeetCall, channels.ChannelDispatch,
                      channels.ChannelCombine]  # fmt: skip
        wanted = [ours.bytes, ours.slot_bytes, 32, *map(ctypes.sizeof, structures)]
        wanted.append(ours.region_bytes)
        assert found[: len(wanted)] == wanted
