"""What an ElasticBuffer knows without a GPU: sizes, what it asks for, where rows by expert end."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from epfabric.buffer import Config, ElasticBuffer, EPHandle
from epfabric.buffer.config import elastic_size_hint
from epfabric.buffer.expanded import (
    ends_of,
    most_places,
    padded,
    sources_of,
)
from epfabric.buffer.request import Request, request_of
from epfabric.buffer.throughput import ThroughputHandle
from epfabric.cuda.channels import fitting


class Group:
    """As a process group of torch.distributed, or mpi4py's communicator."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def size(self) -> int:
        return self._ranks


class Comm(Group):
    Get_size = Group.size
    size = property(Group.size)


@pytest.fixture
def rng() -> np.random.Generator:
    seed = secrets.randbits(31)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("tokens", [1, 128, 8192])
@pytest.mark.parametrize("sms", [2, 20, 128])
def test_the_size_hint_holds_the_rings_of_any_number_of_multiprocessors(
    ranks: int, tokens: int, sms: int
) -> None:
    hint = ElasticBuffer.get_buffer_size_hint
    room = hint(Group(ranks), tokens, 7168)
    assert room % (2 << 20) == 0
    assert room == hint(Comm(ranks), tokens, 7168, use_fp8_dispatch=True)
    assert room >= hint(Group(ranks), tokens, 7168, num_topk=8)
    for scales, row_bytes in ((0, 14336), (56, 7168), (224, 7168)):
        slots = Config(sms).num_max_nvl_chunked_recv_tokens
        shape = fitting(room, ranks, sms // 2, slots, 16, scales, row_bytes)
        # A whole batch, or as many rows in all channels as rings have by default.
        assert shape.slots * shape.channels >= min(tokens, 2560 - 64) or shape.slots == slots


def test_a_size_without_its_numbers_is_refused() -> None:
    for arguments, text in [
        ((2, 0, 7168), "num_max_tokens_per_rank must be at least 1"),
        ((2, 8, 0), "hidden must be at least 1"),
        ((2, 8, 128, 17), "num_topk must be 0 to 16"),
    ]:
        with pytest.raises(ValueError, match=text):
            elastic_size_hint(*arguments)
    with pytest.raises(ValueError, match="either group, comm or session"):
        ElasticBuffer(None, num_max_tokens_per_rank=8, hidden=128)
    with pytest.raises(NotImplementedError, match="num_cpu_bytes=0"):
        ElasticBuffer(Group(2), num_cpu_bytes=1 << 21)
    with pytest.raises(ValueError, match="num_bytes must be at least 1"):
        ElasticBuffer(Group(2), num_bytes=0)


def asked(handle: EPHandle | None = None, **change: Any) -> Request:
    options: dict[str, Any] = {
        "count": 5, "experts": None if handle else 8, "tokens": None, "alignment": None, "sms": 0,
        "sync": None, "expand": False, "default_tokens": 16, "default_sms": 20,
    }  # fmt: skip
    return request_of(handle, **options | change)


def handle_of(request: Request, tokens: int) -> EPHandle:
    nothing = np.empty(0)
    return EPHandle(
        do_expand=request.expand,
        num_experts=request.experts,
        expert_alignment=request.alignment,
        num_max_tokens_per_rank=request.tokens,
        num_sms=request.sms,
        topk_idx=np.zeros((tokens, 2)),
        num_recv_tokens=0,
        num_expanded_tokens=0,
        num_recv_tokens_per_expert_list=[],
        psum_num_recv_tokens_per_scaleup_rank=nothing,
        psum_num_recv_tokens_per_expert=nothing,
        num_unaligned_recv_tokens_per_expert=None,
        routes=ThroughputHandle(),
        expert_tokens=nothing,
        experts=nothing,
        synced=request.sync,
    )


def test_a_dispatch_takes_its_defaults_from_the_buffer_or_from_its_handle() -> None:
    assert asked() == Request(8, 16, 1, 20, True, False)
    given = asked(tokens=5, alignment=4, sms=6, sync=False, expand=True)
    assert given == Request(8, 5, 4, 6, False, True)
    handle = handle_of(given, 5)
    assert asked(handle, expand=True) == given
    assert asked(handle, experts=8, tokens=5, sms=6, alignment=4, sync=False, expand=True) == given


def test_what_a_dispatch_cannot_be_is_refused_with_its_reason() -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"experts": None}, "num_experts is needed"),
        ({"tokens": 4}, "x has 5 tokens: num_max_tokens_per_rank says 4"),
        ({"default_tokens": 0}, "give it to the call or to the constructor"),
        ({"alignment": 0}, "expert_alignment must be at least 1"),
        ({"sms": 7}, "num_sms must be even"),
    ]
    for change, text in changes:
        with pytest.raises(ValueError, match=text):
            asked(**change)
    handle = handle_of(asked(), 5)
    changes = [
        ({"count": 4}, "a dispatch of 5 tokens, x has 4"),
        ({"experts": 16}, "num_experts=8, not 16"),
        ({"tokens": 17}, "num_max_tokens_per_rank=16, not 17"),
        ({"alignment": 2}, "expert_alignment=1, not 2"),
        ({"sms": 4}, "num_sms=20, not 4"),
        ({"expand": True}, "do_expand=False, not True"),
        ({"sync": True}, "do_cpu_sync=True has no meaning"),
    ]
    for change, text in changes:
        with pytest.raises(ValueError, match=text):
            asked(handle, **change)


def test_arguments_that_exclude_each_other_are_refused() -> None:
    buffer = ElasticBuffer.__new__(ElasticBuffer)
    handle = handle_of(asked(), 5)
    choices = np.zeros((5, 2), dtype=np.int64)
    for both in ((None, None), (choices, handle)):
        with pytest.raises(ValueError, match="either topk_idx or the handle"):
            buffer.dispatch(choices, topk_idx=both[0], handle=both[1])
    with pytest.raises(ValueError, match="do_expand=True makes"):
        buffer.dispatch(choices, topk_idx=choices, do_zero_padding=True)
    with pytest.raises(ValueError, match="num_sms=20, not 4"):
        buffer.combine(choices, handle, num_sms=4)
    buffer.allow_multiple_reduction = False
    with pytest.raises(NotImplementedError, match="allow_multiple_reduction=True"):
        buffer.combine(choices, replace(handle, do_expand=True))


def test_ends_are_those_that_deepep_describes(rng: np.random.Generator) -> None:
    for _ in range(20):
        counts = rng.integers(0, 50, int(rng.integers(1, 9))).astype(np.int32)
        alignment = int(rng.choice([1, 4, 8]))
        sizes = [-(-int(count) // alignment) * alignment for count in counts]
        whole = ends_of(counts, alignment, padding=True)
        assert whole.tolist() == np.cumsum(sizes).tolist()
        bare = ends_of(counts, alignment, padding=False)
        assert bare.tolist() == (np.cumsum(sizes) - sizes + counts).tolist()
        before = np.concatenate(([0], padded(bare[:-1], alignment)))
        assert (bare - before).tolist() == counts.tolist()


def test_there_is_room_for_any_rows_by_expert(rng: np.random.Generator) -> None:
    for _ in range(50):
        rows, local, k = (int(rng.integers(0, 60)), *(int(n) for n in rng.integers(1, 9, 2)))
        alignment = int(rng.choice([1, 4, 8]))
        named = [len({int(e) for e in rng.integers(0, local, k)}) for _ in range(rows)]
        most = most_places(rows, k, local, alignment)
        assert most >= sum(named) + (alignment - 1) * local
        assert most % alignment == 0


def test_a_rows_source_is_found_by_where_the_rows_of_ranks_end(rng: np.random.Generator) -> None:
    for _ in range(20):
        ranks, most, room = 4, 20, 5
        sent = [sorted(rng.choice(most, rng.integers(0, most), False)) for _ in range(ranks)]
        tokens = np.array([*(t for one in sent for t in one), *[77] * room], dtype=np.int64)
        topk = rng.integers(-1, 3, (len(tokens), 3))
        topk[:, 2] = 0
        ends = np.cumsum([len(one) for one in sent])
        token, choice = sources_of(np, topk, ends, tokens, most)
        wanted = [(rank, t) for rank, one in enumerate(sent) for t in one]
        for row, (rank, t) in enumerate(wanted):
            assert token[row] == rank * most + t
            first = next(i for i, expert in enumerate(topk[row]) if expert >= 0)
            assert choice[row] == rank * 3 + first
        assert (token[len(wanted) :] == -1).all()
        assert (choice[len(wanted) :] == -1).all()
