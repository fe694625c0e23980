"""Events about the agent's own EPFabricNode, which `kubectl describe` shows; for kube.nics."""

from __future__ import annotations

import datetime
import logging
import os
import uuid

from epfabric_crds import names

from epfabric_agent.kube import paths
from epfabric_agent.kube.api import Api, ApiError

_NAMESPACE = "default"  # where events about objects without a namespace stand
_log = logging.getLogger(__name__)


def tell(api: Api, node: str, uid: str, *, warning: bool, reason: str, note: str) -> None:
    """Blocks for one call. That it cannot be written is logged and stops nothing."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    body = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{node[:200]}.{uuid.uuid4().hex[:16]}", "namespace": _NAMESPACE},
        "eventTime": now,
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "action": "ConfigureNICs",
        "note": note[:1024],
        "reportingController": "epfabric.io/agent",
        "reportingInstance": f"{node}/{os.getpid()}"[:128],
        "regarding": {
            "apiVersion": names.API_VERSION,
            "kind": "EPFabricNode",
            "name": node,
            "uid": uid,
        },
    }
    try:
        api.create(paths.events(_NAMESPACE), body)
    except ApiError as error:
        _log.warning("an Event was not written: %s", error)
