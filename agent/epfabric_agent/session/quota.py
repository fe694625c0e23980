"""How much memory and how many sessions pods may have; a pure ledger, used by session.opening."""

from __future__ import annotations

from dataclasses import dataclass

MAX_POD_SESSIONS = 64


@dataclass(frozen=True)
class Grant:
    """Memory that was granted to a pod; given back by Quota.release()."""

    pod: str
    bytes: int


class QuotaError(Exception):
    """What was asked for is more than the fabric grants; the text says the limit."""


class Quota:
    def __init__(self, per_pod_bytes: int, per_node_bytes: int) -> None:
        self.per_pod_bytes = per_pod_bytes
        self.per_node_bytes = per_node_bytes
        self._pods: dict[str, int] = {}
        self._sessions: dict[str, int] = {}

    @property
    def used_bytes(self) -> int:
        return sum(self._pods.values())

    def set_limits(self, per_pod_bytes: int, per_node_bytes: int) -> None:
        """For what is granted from now on; nothing is taken back."""
        self.per_pod_bytes = per_pod_bytes
        self.per_node_bytes = per_node_bytes

    def open_session(self, pod: str) -> None:
        if self._sessions.get(pod, 0) >= MAX_POD_SESSIONS:
            raise QuotaError(f"a pod may have {MAX_POD_SESSIONS} sessions at once")
        self._sessions[pod] = self._sessions.get(pod, 0) + 1

    def close_session(self, pod: str) -> None:
        left = self._sessions.get(pod, 0) - 1
        if left > 0:
            self._sessions[pod] = left
        else:
            self._sessions.pop(pod, None)

    def grant(self, pod: str, size_bytes: int) -> Grant:
        """Raises QuotaError with the numbers."""
        pod_bytes = self._pods.get(pod, 0)
        if pod_bytes + size_bytes > self.per_pod_bytes:
            raise QuotaError(
                f"{size_bytes} bytes more than the {pod_bytes} that this pod has would pass the "
                f"fabric's limit of {self.per_pod_bytes} bytes a pod (spec.memory.perPod)"
            )
        if self.used_bytes + size_bytes > self.per_node_bytes:
            raise QuotaError(
                f"{size_bytes} bytes more than the {self.used_bytes} of this node's pods would "
                f"pass the fabric's limit of {self.per_node_bytes} bytes (spec.memory.perNode)"
            )
        self._pods[pod] = pod_bytes + size_bytes
        return Grant(pod, size_bytes)

    def release(self, grant: Grant) -> None:
        left = self._pods.get(grant.pod, 0) - grant.bytes
        if left > 0:
            self._pods[grant.pod] = left
        else:
            self._pods.pop(grant.pod, None)
