"""Events, which `kubectl describe` shows: about the agent's own EPFabricNode, for kube.nics, and
about pods, for kube.pod_events."""

from __future__ import annotations

import datetime
import logging
import uuid

from epfabric_crds import names

from epfabric_agent.kube import paths
from epfabric_agent.kube.api import Api, ApiError, Object

CONTROLLER = "epfabric.io/agent"  # policies/agents.yaml knows it
MOST_INSTANCE = 128
_NAMESPACE = "default"  # where events about objects without a namespace stand
_log = logging.getLogger(__name__)


def tell(api: Api, node: str, uid: str, *, warning: bool, reason: str, note: str) -> None:
    """Blocks for one call. That it cannot be written is logged and stops nothing."""
    regarding = {
        "apiVersion": names.API_VERSION,
        "kind": "EPFabricNode",
        "name": node,
        "uid": uid,
    }
    write(api, node, regarding, warning=warning, reason=reason, note=note, action="ConfigureNICs")


def write(
    api: Api, node: str, about: Object, *, warning: bool, reason: str, note: str, action: str
) -> None:
    """`about` refers to an object. As `tell`."""
    namespace = about.get("namespace", _NAMESPACE)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    body = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{about['name'][:200]}.{uuid.uuid4().hex[:16]}",
            "namespace": namespace,
        },
        "eventTime": now,
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "action": action,
        "note": note[:1024],
        "reportingController": CONTROLLER,
        "reportingInstance": node[:MOST_INSTANCE],
        "regarding": about,
    }
    try:
        api.create(paths.events(namespace), body)
    except ApiError as error:
        _log.warning("an Event was not written: %s", error)
