"""How much memory, how many sessions and descriptors pods may have; a pure ledger, for session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from epfabric_crds.settings import TenantLimits

from epfabric_agent.pods import Pod
from epfabric_agent.session.tenants import TenantError, Tenants

MAX_POD_SESSIONS = 64
MAX_POD_DESCRIPTORS = 128
MAX_NODE_DESCRIPTORS = 2048


@dataclass(frozen=True)
class Grant:
    """Memory that was granted to a pod, and descriptors that the agent keeps for it; given back by
    Quota.release()."""

    pod: Pod
    bytes: int
    descriptors: int = 0


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
        self._descriptors: Counter[str] = Counter()
        self._holders: Counter[str] = Counter()
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

    def take_descriptor(self, pod: Pod) -> None:
        """One that the agent keeps for the pod. Raises QuotaError."""
        if self._descriptors[pod.key] >= MAX_POD_DESCRIPTORS:
            raise QuotaError(f"the agent keeps at most {MAX_POD_DESCRIPTORS} descriptors of a pod")
        who = _holder(pod)
        have = self._holders[who]
        # Half of what others leave: the next one, too, finds some.
        most = (MAX_NODE_DESCRIPTORS - self._holders.total() + have) // 2
        if have >= most:
            raise QuotaError(
                f"the agent keeps at most {MAX_NODE_DESCRIPTORS} descriptors of pods, and of one "
                f"tenant half of what others leave: now {most}",
                "tenant",
            )
        self._descriptors[pod.key] += 1
        self._holders[who] += 1

    def give_back_descriptors(self, pod: Pod, count: int) -> None:
        _less(self._descriptors, pod.key, count)
        _less(self._holders, _holder(pod), count)

    def grant_device_memory(self, pod: Pod) -> Grant:
        """The pod's own, of which the agent keeps a descriptor. Raises QuotaError."""
        self.take_descriptor(pod)
        return Grant(pod, 0, 1)

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
        self.give_back_descriptors(grant.pod, grant.descriptors)
        self._tenants.release(grant.pod.tenant, grant.bytes)
        left = self._pods.get(grant.pod.key, 0) - grant.bytes
        if left > 0:
            self._pods[grant.pod.key] = left
        else:
            self._pods.pop(grant.pod.key, None)


def _holder(pod: Pod) -> str:
    """Who shares a bound: the tenant's pods, or else those of the namespace."""
    return f"tenant {pod.tenant}" if pod.tenant else f"namespace {pod.namespace}"


def _less(of: Counter[str], key: str, count: int) -> None:
    of[key] -= count
    if of[key] <= 0:
        del of[key]
