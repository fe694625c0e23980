"""What service accounts wrote, by the API server's audit log; for tests, as `cluster.audit`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POLICY: dict[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "omitManagedFields": True,
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
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


class Audit:
    """The log so far; what was answered stands in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def end(self) -> int:
        """Where the log ends now, for `writes`."""
        return self.path.stat().st_size

    def writes(self, since: int = 0) -> list[Write]:
        """In the order in which they were received."""
        return sorted(map(parse, self._events(since)))

    def _events(self, since: int) -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as file:
            file.seek(since)
            for line in file:
                if line.endswith(b"\n"):  # the last one may be half written
                    yield json.loads(line)


def parse(event: dict[str, Any]) -> Write:
    about = event.get("objectRef") or {}
    parts = (about.get("resource", ""), about.get("subresource"))
    return Write(
        received=event["requestReceivedTimestamp"],
        answered=event["stageTimestamp"],
        agent=event.get("userAgent", ""),
        user=event["user"]["username"],
        verb=event["verb"],
        resource="/".join(filter(None, parts)),
        name=about.get("name", ""),
        code=(event.get("responseStatus") or {}).get("code", 0),
    )
