"""What status and condition say of the NICs: pure, from a plan; for nic.duty and kube.status."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from epfabric_crds.node import NicSetting, NicState, NicStatus
from epfabric_crds.settings import Nics

from epfabric_agent.nic.plan import Finding, Plan

MAX_NICS = 128
MAX_TEXT = 256
# The worst of a NIC's settings is the NIC's state, the worst NIC's the node's.
_WORST: tuple[NicState, ...] = (
    "Failed",
    "Refused",
    "Waiting",
    "Unsupported",
    "Differs",
    "AsWanted",
)


@dataclass(frozen=True)
class NicReport:
    """`holds` is the status of the condition NICsConfigured."""

    nics: tuple[NicStatus, ...] = ()
    holds: bool = True
    reason: str = "NothingWanted"
    message: str = "spec.nics asks for no setting"


def report(wanted: Nics, plan: Plan) -> NicReport:
    by_nic: dict[str, list[Finding]] = {name: [] for name in plan.nics}
    for finding in plan.findings:
        by_nic.setdefault(finding.nic, []).append(finding)
    nics = tuple(_nic(name, found) for name, found in sorted(by_nic.items()))[:MAX_NICS]
    if not plan.findings:
        if wanted_any(wanted) and not plan.nics:
            return NicReport(nics, False, "NoNIC", "no NIC of the node matches spec.nics.selector")
        return NicReport(nics)
    worst = _worst(plan.findings)
    if worst == "AsWanted":
        text = f"{len(plan.nics)} NIC(s) are set as spec.nics wants them"
        return NicReport(nics, True, worst, text)
    first = next(f for f in plan.findings if f.state == worst)
    count = sum(f.state == worst for f in plan.findings)
    more = f"; and {count - 1} more like it" if count > 1 else ""
    text = f"{first.nic}: {first.setting} is {first.actual or 'unknown'}, wanted {first.wanted}"
    return NicReport(nics, False, worst, f"{text}: {first.reason}{more}")


def wanted_any(wanted: Nics) -> bool:
    settings = (wanted.mtu, wanted.roce_mode, wanted.trust, wanted.tos, wanted.pfc, wanted.ecn)
    return any(value is not None for value in settings)


def _nic(name: str, findings: Iterable[Finding]) -> NicStatus:
    settings = tuple(
        NicSetting(
            name=f.setting,
            state=f.state,
            wanted=f.wanted[:64],
            actual=f.actual[:64] or None,
            message=f.reason[:MAX_TEXT] or None,
        )
        for f in findings
    )
    return NicStatus(name=name[:64], state=_worst(findings), settings=settings)


def _worst(findings: Iterable[Finding]) -> NicState:
    states = {finding.state for finding in findings}
    return next((state for state in _WORST if state in states), "AsWanted")
