"""Which versions of a protocol a side speaks; used between pod and agent and between agents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """All versions from `oldest` to `newest`."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        if self.oldest == self.newest:
            return f"version {self.newest}"
        return f"versions {self.oldest} to {self.newest}"

    def meets(self, other: Span) -> bool:
        """Whether both speak at least one version."""
        return self.oldest <= other.newest and other.oldest <= self.newest

    def __contains__(self, version: int) -> bool:
        return self.oldest <= version <= self.newest


def misfit(library: Span, agent: Span) -> str:
    """What to tell people whose library and agent have no version in common."""
    text = f"the library speaks {library} of the session protocol, the agent of this node {agent}: "
    if library.oldest > agent.newest:
        return text + (
            "wait until the fabric's agents are updated (kubectl get epfn -o wide), or install an "
            "older epfabric package in the pod's image"
        )
    return text + "install a newer epfabric package in the pod's image"
