"""How much room the rings of high-throughput calls get, without a GPU."""

from __future__ import annotations

import pytest
from epfabric import SessionError
from epfabric.buffer import Config
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


def test_rings_are_shorter_where_there_is_less_room_and_refused_where_there_is_none() -> None:
    whole = ChannelShape(world=4, channels=10, slots=256, topk=8, scales=0, row_bytes=4096)
    arguments = (4, 10, 256, 8, 0, 4096)
    assert fitting(whole.bytes, *arguments) == whole
    assert fitting(whole.bytes - 1, *arguments).slots == 255
    least = ChannelShape(world=4, channels=10, slots=4, topk=8, scales=0, row_bytes=4096)
    assert fitting(least.bytes, *arguments).slots == 4
    with pytest.raises(SessionError, match=f"need {least.bytes} bytes"):
        fitting(least.bytes - 1, *arguments)
