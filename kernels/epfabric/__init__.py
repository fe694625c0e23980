"""EPFabric in the pod: connect() gives a rank its session with the agent of its node."""

from typing import TYPE_CHECKING, Any

from epfabric.errors import CommandRefused, GroupFailed, SessionError, Timeout
from epfabric.region import Region
from epfabric.ring import Ring
from epfabric.session import Session, connect

if TYPE_CHECKING:
    from epfabric.buffer import Buffer

__all__ = [
    "Buffer",
    "CommandRefused",
    "GroupFailed",
    "Region",
    "Ring",
    "Session",
    "SessionError",
    "Timeout",
    "connect",
]


def __getattr__(name: str) -> Any:
    """Buffer, only when it is asked for: sessions need nothing of it."""
    if name == "Buffer":
        from epfabric.buffer import Buffer

        return Buffer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
