"""Keeps sessions within the agent's own memory limit; used by session.opening.

The kernel kills an agent that passes it, and with it every group of the node.
"""

from __future__ import annotations

from collections.abc import Callable

from epfabric_agent.session.quota import QuotaError

RESERVE_BYTES = 48 << 20
"""Stays free: for requests, for telemetry, for what peers send."""
PROXY_BYTES = 8 << 20
"""What a proxy takes beside the segments: its endpoint, its queues."""


class Room:
    """`left_bytes` says what is left, None for no limit. Sessions that open at once add up."""

    def __init__(self, left_bytes: Callable[[], int | None]) -> None:
        self._left_bytes = left_bytes
        self._opening = 0

    def take(self, size_bytes: int) -> None:
        """Raises QuotaError with the numbers; settle() when the memory is there, or won't be."""
        left = self._left_bytes()
        if left is not None and size_bytes > left - self._opening - RESERVE_BYTES:
            raise QuotaError(
                f"this session takes {size_bytes} bytes of the agent's own memory, of which "
                f"{max(left - self._opening, 0)} are left (it keeps {RESERVE_BYTES}): raise the "
                "memory limit in spec.agent.pools, or start fewer or smaller groups on this node"
            )
        self._opening += size_bytes

    def settle(self, size_bytes: int) -> None:
        self._opening -= size_bytes
