"""How much room the rings of high-throughput calls get, without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from epfabric import SessionError
from epfabric.buffer import Buffer, Config
from epfabric.buffer.parts import alike_nodes
from epfabric.cuda.channels import ChannelShape, fitting


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize(("hidden", "scales"), [(7168, 0), (7168, 56), (2048, 16)])
def test_the_size_hint_holds_the_rings_of_its_configuration(
    ranks: int, hidden: int, scales: int
) -> None:
    for config in (Config(), Config(24, 8, 300), Config(128, 1, 32)):
        row_bytes = hidden if scales else 2 * hidden
        room = config.get_nvl_buffer_size_hint(row_bytes, ranks)
        channels, slots = config.num_sms // 2, config.num_max_nvl_chunked_recv_tokens
        shape = fitting(room, ranks, channels, slots, 16, scales, row_bytes)
        assert shape.slots == slots
        assert shape.bytes <= room


@pytest.mark.parametrize("ranks", [2, 16, 64])
@pytest.mark.parametrize(("hidden", "scales"), [(7168, 0), (7168, 56), (2048, 16)])
def test_a_region_holds_the_rings_of_its_configuration(
    ranks: int, hidden: int, scales: int
) -> None:
    for config in (Config(), Config(24, 8, 300, 8, 64)):
        row_bytes = hidden if scales else 2 * hidden
        room = Buffer.get_throughput_region_bytes(config, row_bytes, ranks)
        channels, slots = config.num_sms // 2, config.num_max_rdma_chunked_recv_tokens
        shape = fitting(1 << 40, ranks, channels, slots, 16, scales, row_bytes, room)
        assert (shape.slots, shape.region_bytes <= room) == (slots, True)


def test_rings_are_as_long_as_window_and_region_have_room_for() -> None:
    whole = ChannelShape(world=4, channels=10, slots=256, topk=8, scales=0, row_bytes=4096)
    arguments = (4, 10, 256, 8, 0, 4096)
    assert fitting(whole.bytes, *arguments, whole.region_bytes) == whole
    assert fitting(whole.bytes, *arguments, whole.region_bytes - 1).slots == 255
    assert fitting(whole.bytes - 1, *arguments, whole.region_bytes).slots == 255
    least = replace(whole, slots=4)
    with pytest.raises(SessionError, match=f"need {least.region_bytes} bytes of its region"):
        fitting(whole.bytes, *arguments, least.region_bytes - 1)


@pytest.mark.parametrize(
    ("nodes", "each"),
    [("aabb", [2, 2, 2, 2]), ("ab", [1, 1]), ("abab", [1, 1, 1, 1]), ("aaab", [1, 1, 1, 1]),
     ("aabc", [2, 2, 1, 1]), ("aabbb", [1, 1, 1, 1, 1]), ("abbc", [1, 1, 1, 1]),
     ("aaaabbbb", [4] * 8), ("aaa", [3, 3, 3])],
)  # fmt: skip
def test_a_rank_sees_how_many_ranks_nodes_have_only_where_they_may_be_alike(
    nodes: str, each: list[int]
) -> None:
    world = range(len(nodes))
    found = [
        alike_nodes(len(nodes), rank, [o for o in world if nodes[o] != nodes[rank]])
        for rank in world
    ]
    assert found == each


def test_tokens_whose_batch_no_command_could_carry_are_refused() -> None:
    for row_bytes, slots in ((1 << 18, 64), (1 << 22, 4)):
        arguments = (2, 1, slots, 0, 0, row_bytes)
        with pytest.raises(SessionError, match="too large for ranks of other nodes"):
            fitting(1 << 40, *arguments, 1 << 40)
        assert fitting(1 << 40, *arguments).slots == slots


def test_rings_are_shorter_where_there_is_less_room_and_refused_where_there_is_none() -> None:
    whole = ChannelShape(world=4, channels=10, slots=256, topk=8, scales=0, row_bytes=4096)
    arguments = (4, 10, 256, 8, 0, 4096)
    assert fitting(whole.bytes, *arguments) == whole
    assert fitting(whole.bytes - 1, *arguments).slots == 255
    least = ChannelShape(world=4, channels=10, slots=4, topk=8, scales=0, row_bytes=4096)
    assert fitting(least.bytes, *arguments).slots == 4
    with pytest.raises(SessionError, match=f"need {least.bytes} bytes"):
        fitting(least.bytes - 1, *arguments)
