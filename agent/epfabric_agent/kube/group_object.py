"""The EPGroup of a group as JSON, from what its coordinator says: pure; for kube.group_report."""

from __future__ import annotations

from dataclasses import dataclass, replace

from epfabric_crds import names, to_dict
from epfabric_crds.group import BarrierStatistics, Coordinator, EPGroupStatus, GroupNode

from epfabric_agent.csi.records import Owner
from epfabric_agent.groups.ranges import parse_ranges
from epfabric_agent.groups.state import GroupState
from epfabric_agent.kube.api import Object
from epfabric_agent.peers.client import Agent
from epfabric_agent.pods import Pod

MAX_RANGES = 256


@dataclass(frozen=True)
class Report:
    """What is to be written of one group. `pod` is rank 0's."""

    pod: Pod
    state: GroupState
    barriers: BarrierStatistics | None = None

    @property
    def ended(self) -> bool:
        return self.state.phase in ("Completed", "Failed")

    def with_state(self, pod: Pod, state: GroupState) -> Report:
        """Statistics are of one epoch."""
        barriers = self.barriers if state.epoch == self.state.epoch else None
        return Report(pod, state, barriers)

    def with_barriers(self, epoch: int, barriers: BarrierStatistics | None) -> Report:
        if epoch != self.state.epoch or barriers is None:
            return self
        return replace(self, barriers=barriers)


def main_part(report: Report, fabric: str) -> Object:
    """Metadata and spec."""
    pod, owner = report.pod, report.pod.owner
    # Without a controller the group goes with rank 0's pod, unless it goes on without that rank.
    if owner is None and pod.uid and 0 not in parse_ranges(report.state.masked):
        owner = Owner("v1", "Pod", pod.name, pod.uid)
    metadata: Object = {
        "name": pod.group,
        "namespace": pod.namespace,
        "labels": {names.FABRIC_LABEL: fabric},
    }
    if owner is not None:
        metadata["ownerReferences"] = [
            {
                "apiVersion": owner.api_version,
                "kind": owner.kind,
                "name": owner.name,
                "uid": owner.uid,
            }
        ]
    return {
        "apiVersion": names.API_VERSION,
        "kind": "EPGroup",
        "metadata": metadata,
        "spec": {"fabric": fabric, "worldSize": report.state.world_size},
    }


def status_part(report: Report, coordinator: Agent) -> Object:
    state = report.state
    status = EPGroupStatus(
        phase=state.phase,
        reason=state.reason or None,
        epoch=state.epoch,
        masked=state.masked if 0 < len(state.masked) <= MAX_RANGES else None,
        coordinator=Coordinator(node=coordinator.node, endpoint=coordinator.endpoint),
        nodes=tuple(
            GroupNode(
                node=part.node,
                endpoint=part.endpoint or None,
                ranks=part.ranks if len(part.ranks) <= MAX_RANGES else None,
            )
            for part in state.nodes
        ),
        barriers=report.barriers,
    )
    return {
        "apiVersion": names.API_VERSION,
        "kind": "EPGroup",
        "metadata": {"name": report.pod.group, "namespace": report.pod.namespace},
        "status": to_dict(status),
    }


def coordinator_of(group: Object | None, own_node: str) -> Agent | None:
    """Where a group that forms or runs has its coordinator, by its EPGroup."""
    status = (group or {}).get("status") or {}
    found = status.get("coordinator") or {}
    if status.get("phase") not in ("Forming", "Ready") or found.get("node") in (None, own_node):
        return None
    return Agent(found["node"], found["endpoint"])
