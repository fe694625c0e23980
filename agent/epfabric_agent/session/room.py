"""Keeps sessions within the agent's own memory limit; used by session.opening.

The kernel kills an agent that passes it, and with it every group of the node.
"""

from __future__ import annotations

from collections.abc import Callable

from epfabric_agent.session.quota import QuotaError

RESERVE_BYTES = 48 << 20
"""Stays free: for requests, for telemetry, for what peers send."""
PROXY_BYTES = 8 << 20
"""What a proxy takes beside the segments and verbs' queues: its endpoint, its thread."""


class Held:
    """Memory that will be taken, kept free until it is."""

    def __init__(self, room: Room, size_bytes: int) -> None:
        self._room = room
        self._size_bytes = size_bytes

    def settle(self) -> None:
        """The memory is there, or won't be."""
        self._room.held_bytes -= self._size_bytes
        self._size_bytes = 0


class Room:
    """`left_bytes` says what is left, None for no limit. Sessions that open at once add up."""

    def __init__(self, left_bytes: Callable[[], int | None]) -> None:
        self._left_bytes = left_bytes
        self.held_bytes = 0

    def take(self, *sizes_bytes: int) -> list[Held]:
        """All of them, each until it is settled; or raises QuotaError with the numbers."""
        left, wanted = self._left_bytes(), sum(sizes_bytes)
        if left is not None and wanted > left - self.held_bytes - RESERVE_BYTES:
            raise QuotaError(
                f"this session takes {wanted} bytes of the agent's own memory, of which "
                f"{max(left - self.held_bytes, 0)} are left (it keeps {RESERVE_BYTES}): raise the "
                "memory limit in spec.agent.pools, or start fewer or smaller groups on this node"
            )
        self.held_bytes += wanted
        return [Held(self, size) for size in sizes_bytes]
