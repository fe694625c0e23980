"""What service accounts did, by the API server's audit log; for tests, as `cluster.audit`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READS = ["get", "list", "watch"]
POLICY: dict[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "omitManagedFields": True,
    "rules": [
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
    """A right that an account asked for, by a request."""

    account: str  # namespace:name
    group: str  # of the API; empty is the core
    resource: str
    verb: str
    namespace: str
    name: str
    made: bool  # an apply that makes its object needs the right to create, too
    allowed: bool

    @property
    def verbs(self) -> tuple[str, ...]:
        return (self.verb, "create") if self.made else (self.verb,)


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

    def uses(self, since: int = 0) -> set[Use]:
        """What programs with service accounts asked for, reads among it; not what tests ask."""
        return {
            used(event)
            for event in self._events(since)
            if "objectRef" in event and not event.get("userAgent", "").startswith("kubectl/")
        }

    def _events(self, since: int) -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as file:
            file.seek(since)
            for line in file:
                if line.endswith(b"\n"):  # the last one may be half written
                    yield json.loads(line)


def used(event: dict[str, Any]) -> Use:
    about, answer = event["objectRef"], event.get("responseStatus", {})
    decision = event.get("annotations", {}).get("authorization.k8s.io/decision")
    # An apply that may not create is refused after the decision on the patch.
    unmade = answer.get("code") == 403 and " cannot create " in answer.get("message", "")
    return Use(
        account=event["user"]["username"].removeprefix("system:serviceaccount:"),
        group=about.get("apiGroup", ""),
        resource=_resource(about),
        verb="create" if unmade else event["verb"],
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        made=event["verb"] == "patch" and answer.get("code") == 201,
        allowed=decision == "allow" and not unmade,
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
