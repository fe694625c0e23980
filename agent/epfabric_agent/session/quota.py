"""How much memory and how many sessions pods may have; a pure ledger, used by session.opening."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from epfabric_crds.settings import TenantLimits

from epfabric_agent.pods import Pod
from epfabric_agent.session.tenants import TenantError, Tenants

MAX_POD_SESSIONS = 64


@dataclass(frozen=True)
class Grant:
    """Memory that was granted to a pod; given back by Quota.release()."""

    pod: Pod
    bytes: int


class QuotaError(Exception):
    """What was asked for is more than the fabric grants; the text says the limit."""

    def __init__(self, text: str, code: str = "quota") -> None:
        """`code` is that of the session protocol."""
        super().__init__(text)
        self.code = code


class Quota:
    def __init__(self, per_pod_bytes: int, per_node_bytes: int) -> None:
        self.per_pod_bytes = per_pod_bytes
        self.per_node_bytes = per_node_bytes
        self._pods: dict[str, int] = {}
        self._sessions: dict[str, int] = {}
        self._tenants = Tenants()

    @property
    def used_bytes(self) -> int:
        return sum(self._pods.values())

    def set_limits(
        self, per_pod_bytes: int, per_node_bytes: int, tenants: Iterable[TenantLimits] = ()
    ) -> None:
        """For what is granted from now on; nothing is taken back."""
        self.per_pod_bytes = per_pod_bytes
        self.per_node_bytes = per_node_bytes
        self._tenants.set_limits(tenants)

    def inflight(self, pod: Pod) -> int | None:
        """Operations that a proxy of the pod may have outstanding; None: no limit of its own."""
        return self._tenants.inflight(pod.tenant)

    def open_session(self, pod: Pod) -> None:
        if self._sessions.get(pod.key, 0) >= MAX_POD_SESSIONS:
            raise QuotaError(f"a pod may have {MAX_POD_SESSIONS} sessions at once")
        try:
            self._tenants.open(pod.tenant, pod.group_key)
        except TenantError as error:
            raise QuotaError(str(error), "tenant") from error
        self._sessions[pod.key] = self._sessions.get(pod.key, 0) + 1

    def close_session(self, pod: Pod) -> None:
        self._tenants.close(pod.tenant, pod.group_key)
        left = self._sessions.get(pod.key, 0) - 1
        if left > 0:
            self._sessions[pod.key] = left
        else:
            self._sessions.pop(pod.key, None)

    def grant(self, pod: Pod, size_bytes: int) -> Grant:
        """Raises QuotaError with the numbers."""
        pod_bytes = self._pods.get(pod.key, 0)
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
        try:
            self._tenants.grant(pod.tenant, size_bytes)
        except TenantError as error:
            raise QuotaError(str(error), "tenant") from error
        self._pods[pod.key] = pod_bytes + size_bytes
        return Grant(pod, size_bytes)

    def release(self, grant: Grant) -> None:
        self._tenants.release(grant.pod.tenant, grant.bytes)
        left = self._pods.get(grant.pod.key, 0) - grant.bytes
        if left > 0:
            self._pods[grant.pod.key] = left
        else:
            self._pods.pop(grant.pod.key, None)
