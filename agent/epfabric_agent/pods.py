"""A pod, or with a manifest a group of local processes, that has a socket; for session, groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from epfabric_agent.csi.records import Owner, Record


@dataclass(frozen=True)
class Pod:
    """Who sits behind a socket. `key` is unique on the node and stable for the pod's life."""

    key: str
    namespace: str
    name: str
    group: str
    owner: Owner | None
    directory: Path
    """Where its socket lies."""
    uid: str = ""
    tenant: str = ""

    @property
    def group_key(self) -> str:
        """The group's name among all groups: namespace/name."""
        return f"{self.namespace}/{self.group}"

    @property
    def label(self) -> str:
        """The pod as people name it."""
        return f"{self.namespace}/{self.name}" if self.name else self.namespace


def of_record(record: Record) -> Pod:
    return Pod(
        key=record.volume_id,
        namespace=record.namespace,
        name=record.pod,
        group=record.group or f"pod-{record.pod_uid}",
        owner=record.owner,
        directory=Path(record.directory),
        uid=record.pod_uid,
        tenant=record.tenant,
    )
