"""What an epoch calls of the core (`_native.Core`, which says what each call does)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from epfabric_agent._native import RemoteRank, Session


class EpochCore(Protocol):
    def open_epoch(
        self,
        group: int,
        epoch: int,
        local: list[Session],
        remote: list[RemoteRank],
        leader_rank: int,
        nodes: list[list[int]],
        barrier_timeout_ms: int,
        *,
        mask: bool,
        uid: bytes,
        dissemination: bool,
    ) -> None: ...
    def start_epoch(self, group: int) -> None: ...
    def atomics(self, group: int) -> str: ...
    def fail_epoch(self, group: int, reason: str) -> None: ...
    def rank_left(self, group: int, rank: int) -> None: ...
    def mask_ranks(self, group: int, ranks: list[int]) -> None: ...
    def exclude_ranks(self, group: int, ranks: list[int]) -> None: ...
    def absent(self, group: int, barrier: int) -> list[int]: ...
    def close_epoch(self, group: int) -> None: ...
    def forget_group(self, group: int) -> None: ...
