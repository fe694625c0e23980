"""What service accounts did, by the API server's audit log; for tests, as `cluster.audit`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epfabric_crds.names import NAMESPACE, NODES_NAMESPACE

READS = ["get", "list", "watch"]
OURS = [f"system:serviceaccounts:{name}" for name in (NAMESPACE, NODES_NAMESPACE)]
POLICY: dict[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "omitManagedFields": True,
    "rules": [
        # Reads of our own accounts, for what they use of their rights; a watch when it begins.
        {"level": "Metadata", "verbs": READS, "userGroups": OURS},
        {"level": "None", "verbs": READS},
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
    ],
}


@dataclass(frozen=True, order=True)
class Write:
    """One request that changes something; times are the API server's, as text that sorts."""

    received: str
    answered: str
    agent: str  # the client's User-Agent
    user: str
    verb: str
    resource: str  # with the subresource: "nodes", "epfabrics/status"
    name: str
    code: int


@dataclass(frozen=True, order=True)
class Use:
    """A right that an account used: the API server let it."""

    user: str
    group: str  # of the API; empty is the core
    resource: str
    verb: str
    namespace: str
    name: str
    made: bool  # an apply that makes its object is asked for the right to create, too


class Audit:
    """The log so far; what was answered stands in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def end(self) -> int:
        """Where the log ends now, for `writes`."""
        return self.path.stat().st_size

    def writes(self, since: int = 0) -> list[Write]:
        """In the order in which they were received."""
        return sorted(parse(e) for e in self._events(since) if e["verb"] not in READS)

    def uses(self) -> set[Use]:
        """What was asked and allowed so far, reads only of our own accounts."""
        return {used(event) for event in self._events(0) if allowed(event)}

    def _events(self, since: int) -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as file:
            file.seek(since)
            for line in file:
                if line.endswith(b"\n"):  # the last one may be half written
                    yield json.loads(line)


def allowed(event: dict[str, Any]) -> bool:
    return "objectRef" in event and (event.get("responseStatus") or {}).get("code") not in (
        401,
        403,
    )


def used(event: dict[str, Any]) -> Use:
    about = event["objectRef"]
    return Use(
        user=event["user"]["username"],
        group=about.get("apiGroup", ""),
        resource=_resource(about),
        verb=event["verb"],
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        made=event["verb"] == "patch" and event.get("responseStatus", {}).get("code") == 201,
    )


def _resource(about: dict[str, Any]) -> str:
    return "/".join(filter(None, (about.get("resource", ""), about.get("subresource"))))


def parse(event: dict[str, Any]) -> Write:
    about = event.get("objectRef") or {}
    return Write(
        received=event["requestReceivedTimestamp"],
        answered=event["stageTimestamp"],
        agent=event.get("userAgent", ""),
        user=event["user"]["username"],
        verb=event["verb"],
        resource=_resource(about),
        name=about.get("name", ""),
        code=(event.get("responseStatus") or {}).get("code", 0),
    )
