"""What the pods of each tenant have on this node; a pure ledger, used by session.quota."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from epfabric_crds.settings import TenantLimits


class TenantError(Exception):
    """What was asked for is more than the tenant may have; the text says the limit."""


class Tenants:
    def __init__(self) -> None:
        self._limits: dict[str, TenantLimits] = {}
        self._bytes: Counter[str] = Counter()
        self._sessions: dict[str, Counter[str]] = defaultdict(Counter)  # by tenant, by group

    def set_limits(self, limits: Iterable[TenantLimits]) -> None:
        """For what is asked from now on; nothing is taken back."""
        self._limits = {one.name: one for one in limits}

    def inflight(self, tenant: str) -> int | None:
        """Operations that a proxy of the tenant's sessions may have outstanding; None: no limit."""
        limits = self._limits.get(tenant)
        return limits.max_inflight if limits else None

    def open(self, tenant: str, group: str) -> None:
        """One more session. Raises TenantError."""
        limits = self._limits.get(tenant, TenantLimits(name=tenant))
        groups = self._sessions[tenant]
        have = groups.total()
        if limits.max_sessions is not None and have >= limits.max_sessions:
            raise TenantError(
                f"the tenant {tenant} has {have} sessions on this node and may have "
                f"{limits.max_sessions} (maxSessions in spec.tenants of the fabric)"
            )
        here = len(groups)
        if limits.max_groups is not None and group not in groups and here >= limits.max_groups:
            raise TenantError(
                f"the tenant {tenant} has {here} groups on this node and may have "
                f"{limits.max_groups} (maxGroups in spec.tenants of the fabric)"
            )
        groups[group] += 1

    def close(self, tenant: str, group: str) -> None:
        groups = self._sessions[tenant]
        groups[group] -= 1
        if groups[group] <= 0:
            del groups[group]

    def grant(self, tenant: str, size_bytes: int) -> None:
        """Raises TenantError."""
        limits = self._limits.get(tenant)
        most = limits.max_memory_bytes if limits else None
        have = self._bytes[tenant]
        if most is not None and have + size_bytes > most:
            raise TenantError(
                f"{size_bytes} bytes more than the {have} that the tenant {tenant} has on this "
                f"node would pass its {most} bytes (maxMemory in spec.tenants of the fabric)"
            )
        self._bytes[tenant] += size_bytes

    def release(self, tenant: str, size_bytes: int) -> None:
        self._bytes[tenant] -= size_bytes
