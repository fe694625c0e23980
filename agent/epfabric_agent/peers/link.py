"""A node's connection to the coordinator of a group, near or far; used by groups.part."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from epfabric_agent.proto import peer_pb2 as pb


class LinkBroken(Exception):
    """The coordinator's agent cannot be reached any more; the text says why."""


class NotCoordinator(Exception):
    """That agent does not coordinate the group: look again."""


class OtherVersion(Exception):
    """That agent speaks no version of the protocol that this one does; the text names both."""


class Link(Protocol):
    """Messages to the coordinator; what it says comes in order until the link ends."""

    @property
    def node(self) -> str:
        """The coordinator's node."""

    def send(self, message: pb.ToCoordinator) -> None:
        """Never blocks; what is sent on an ended link is dropped."""

    def messages(self) -> AsyncGenerator[pb.ToMember, None]:
        """Ends when the coordinator dissolves the group; raises LinkBroken or NotCoordinator."""

    async def close(self) -> None:
        """Takes part no longer; what was sent before still arrives."""
