"""EPFabric in the pod: connect() gives a rank its session with the agent of its node."""

from typing import TYPE_CHECKING, Any

from epfabric.errors import CommandRefused, GroupFailed, SessionError, Timeout
from epfabric.opening import connect
from epfabric.region import Region
from epfabric.ring import Ring
from epfabric.session import Session

if TYPE_CHECKING:
    from epfabric.buffer import Buffer, ElasticBuffer

__all__ = [
    "Buffer",
    "CommandRefused",
    "ElasticBuffer",
    "GroupFailed",
    "Region",
    "Ring",
    "Session",
    "SessionError",
    "Timeout",
    "connect",
]


def __getattr__(name: str) -> Any:
    """The buffers, only when they are asked for: sessions need nothing of them."""
    if name in ("Buffer", "ElasticBuffer"):
        import epfabric.buffer

        return getattr(epfabric.buffer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
