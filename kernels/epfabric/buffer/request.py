"""What a dispatch of an ElasticBuffer asks for, checked before anything runs; what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from epfabric.buffer.config import Config
from epfabric.buffer.expanded import most_places, sources_of
from epfabric.buffer.throughput import ThroughputHandle


@dataclass(frozen=True)
class Request:
    """All ranks ask alike; ValueError for what cannot be.

    tokens: at most, of a rank. sync: the host waits until it knows how many rows come, else there
    is room for all that may. expand: a row for each expert of a token.
    """

    experts: int
    tokens: int
    alignment: int
    sms: int
    sync: bool
    expand: bool

    def __post_init__(self) -> None:
        if self.alignment < 1:
            raise ValueError(f"expert_alignment must be at least 1, not {self.alignment}")
        if self.tokens < 1:
            raise ValueError(
                "num_max_tokens_per_rank is needed: give it to the call or to the constructor"
            )
        _ = self.config

    @property
    def config(self) -> Config:
        return Config(self.sms)

    def most_rows(self, world: int) -> int:
        return world * self.tokens

    def most_places(self, world: int, topk: int) -> int:
        local = self.experts // world
        return most_places(self.most_rows(world), topk, local, self.alignment)


@dataclass(eq=False)
class EPHandle:
    """By which a dispatch is repeated and answered; names are DeepEP's.

    Of all ranks of the node: psum_num_recv_tokens_per_scaleup_rank [ranks] (int32), where the rows
    of each end. Of this rank's experts (int32): psum_num_recv_tokens_per_expert, where the rows of
    each end, counted with their padding; with do_expand without the padding of the last.
    num_unaligned_recv_tokens_per_expert: rows of each, with do_expand. The numbers of tokens are
    those there is room for, where the host did not wait.
    """

    do_expand: bool
    num_experts: int
    expert_alignment: int
    num_max_tokens_per_rank: int
    num_sms: int
    topk_idx: Any
    num_recv_tokens: int
    num_expanded_tokens: int
    num_recv_tokens_per_expert_list: list[int]
    psum_num_recv_tokens_per_scaleup_rank: Any
    psum_num_recv_tokens_per_expert: Any
    num_unaligned_recv_tokens_per_expert: Any
    # Not DeepEP's:
    routes: ThroughputHandle
    expert_tokens: Any  # [experts]: that this rank sent
    experts: Any  # [rows, k]: of this rank, -1: none
    synced: bool
    places: Any = None  # [rows, k], with do_expand
    rows: Any = None  # [places], with do_expand
    token_metadata_at_forward: None = None
    channel_linked_list: None = None

    @cached_property
    def recv_src_metadata(self) -> Any:
        """[rows, 2 + k] (int32): the token's number, which is its rank's times
        num_max_tokens_per_rank and its own; its rank times k and its first choice here; its places,
        with do_expand. -1: none. Made on the current stream when it is asked for."""
        import torch

        topk, ends = self.experts, self.psum_num_recv_tokens_per_scaleup_rank
        token, choice = sources_of(
            torch, topk, ends, self.routes[3].long(), self.num_max_tokens_per_rank
        )
        places = self.places if self.places is not None else torch.full_like(topk, -1)
        return torch.cat((token[:, None], choice[:, None], places), 1).int()


def request_of(
    handle: EPHandle | None, *, count: int, experts: int | None, tokens: int | None,
    alignment: int | None, sms: int, sync: bool | None, expand: bool, default_tokens: int,
    default_sms: int,
) -> Request:  # fmt: skip
    """count: tokens that this rank sends. Raises ValueError that says what to give instead."""
    if handle is None:
        if experts is None:
            raise ValueError("without a handle num_experts is needed")
        asked = Request(
            experts,
            default_tokens if tokens is None else tokens,
            1 if alignment is None else alignment,
            sms or default_sms,
            sync is not False,
            expand,
        )
    else:
        asked = _as_before(handle, experts, tokens, alignment, sms, sync, expand)
        if count != len(handle.topk_idx):
            raise ValueError(
                f"the handle is of a dispatch of {len(handle.topk_idx)} tokens, x has {count}"
            )
    if count > asked.tokens:
        raise ValueError(f"x has {count} tokens: num_max_tokens_per_rank says {asked.tokens}")
    return asked


def _as_before(
    handle: EPHandle, experts: int | None, tokens: int | None, alignment: int | None, sms: int,
    sync: bool | None, expand: bool,
) -> Request:  # fmt: skip
    for name, given, before in (
        ("num_experts", experts, handle.num_experts),
        ("num_max_tokens_per_rank", tokens, handle.num_max_tokens_per_rank),
        ("expert_alignment", alignment, handle.expert_alignment),
        ("num_sms", sms or None, handle.num_sms),
        ("do_expand", expand, handle.do_expand),
    ):
        if given is not None and given != before:
            raise ValueError(
                f"the handle is of a dispatch with {name}={before}, not {given}: give the same"
            )
    if sync:
        raise ValueError("with a handle the sizes are known: do_cpu_sync=True has no meaning")
    return Request(
        handle.num_experts,
        handle.num_max_tokens_per_rank,
        handle.expert_alignment,
        handle.num_sms,
        handle.synced,
        handle.do_expand,
    )
