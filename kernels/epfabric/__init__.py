"""EPFabric in the pod: connect() gives a rank its session with the agent of its node."""

from epfabric.errors import CommandRefused, GroupFailed, SessionError, Timeout
from epfabric.region import Region
from epfabric.ring import Ring
from epfabric.session import Session, connect

__all__ = [
    "CommandRefused",
    "GroupFailed",
    "Region",
    "Ring",
    "Session",
    "SessionError",
    "Timeout",
    "connect",
]
