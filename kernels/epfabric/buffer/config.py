"""Tuning of high-throughput calls, and how large buffers have to be; for the buffers and their
users.

Names and defaults of Config are DeepEP's.
"""

from __future__ import annotations

from dataclasses import dataclass

from epfabric.cuda.channels import LEAST_SLOTS, MAX_CHANNELS, ChannelShape
from epfabric.cuda.window import MAX_TOPK

MAX_RANKS_OF_A_NODE = 8
_ALIGNMENT = 2 << 20
_KNOWN_RANKS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)


@dataclass(frozen=True)
class Config:
    """num_sms: multiprocessors of a call, even. Raises ValueError for what cannot be."""

    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def __post_init__(self) -> None:
        if self.num_sms < 2 or self.num_sms % 2:
            raise ValueError(f"num_sms must be even and at least 2, not {self.num_sms}")
        for kind in ("nvl", "rdma"):
            send = getattr(self, f"num_max_{kind}_chunked_send_tokens")
            receive = getattr(self, f"num_max_{kind}_chunked_recv_tokens")
            if not 1 <= send < receive:
                raise ValueError(
                    f"num_max_{kind}_chunked_send_tokens must be at least 1 and less than "
                    f"num_max_{kind}_chunked_recv_tokens, not {send} and {receive}"
                )

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of num_nvl_bytes that calls with this configuration want for tokens of so many
        bytes: a ring of num_max_nvl_chunked_recv_tokens for each channel and rank of the node."""
        ranks = min(num_ranks, MAX_RANKS_OF_A_NODE)
        slot = hidden_bytes + hidden_bytes // 32 + 256  # the token, its scales, what stands before
        rings = self.num_sms // 2 * ranks
        return rings * self.num_max_nvl_chunked_recv_tokens * slot + (1 << 20)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes of a Buffer's throughput_region; 0 for as few ranks as one node may have."""
        if num_ranks <= MAX_RANKS_OF_A_NODE:
            return 0
        return throughput_region_bytes(self, hidden_bytes, num_ranks)


def throughput_region_bytes(config: Config, hidden_bytes: int, ranks: int) -> int:
    """Of the region through which calls with this configuration go to ranks of other nodes, for
    tokens of so many bytes: for each channel and rank a ring of as many tokens as the configuration
    has in a ring, one that comes in and one that goes out."""
    slots = min(config.num_max_nvl_chunked_recv_tokens, config.num_max_rdma_chunked_recv_tokens)
    row_bytes = -(-hidden_bytes // 16) * 16
    scales = -(-hidden_bytes // 128)
    return ChannelShape(ranks, config.num_sms // 2, slots, MAX_TOPK, scales, row_bytes).region_bytes


def elastic_size_hint(num_ranks: int, tokens: int, hidden: int, topk: int = 0) -> int:
    """Bytes of an ElasticBuffer for up to so many tokens of every rank, of bfloat16, which are the
    largest, with so many choices (0: any number); a multiple of 2 MiB. ValueError for none."""
    for name, value, least, most in (
        ("num_max_tokens_per_rank", tokens, 1, None),
        ("hidden", hidden, 1, None),
        ("num_topk", topk, 0, MAX_TOPK),
    ):
        if value < least or (most is not None and value > most):
            bound = f"at least {least}" if most is None else f"{least} to {most}"
            raise ValueError(f"{name} must be {bound}, not {value}")
    # All channels together: room for a batch, or as long rings as a Config has by default; never
    # less than what the largest number of channels needs.
    default = Config()
    rings = default.num_sms // 2 * default.num_max_nvl_chunked_recv_tokens
    slots = max(min(tokens + MAX_CHANNELS, rings), LEAST_SLOTS * MAX_CHANNELS)
    need = ChannelShape(num_ranks, 1, slots, topk or MAX_TOPK, 0, 2 * hidden).bytes
    return -(-need // _ALIGNMENT) * _ALIGNMENT


def recommended(num_ranks: int, num_sms: int) -> Config:
    """For dispatch and for combine of so many ranks; ValueError where none is known."""
    if num_ranks not in _KNOWN_RANKS:
        known = ", ".join(map(str, _KNOWN_RANKS))
        raise ValueError(f"no configuration for {num_ranks} ranks: known are {known}")
    return Config(num_sms)
