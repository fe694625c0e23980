"""Kubernetes Events, which `kubectl describe` shows; used where the operator refuses something."""

from __future__ import annotations

import datetime
import logging
import uuid
from collections.abc import Mapping
from typing import Any

from epfabric_operator import paths
from epfabric_operator.kube import ApiError, Kube

log = logging.getLogger(__name__)
CONTROLLER = "epfabric.io/operator"


class EventWriter:
    def __init__(self, kube: Kube, instance: str) -> None:
        self._kube = kube
        self._instance = instance[:128]

    def warn(self, about: Mapping[str, Any], reason: str, action: str, note: str) -> None:
        """An Event about `about`. That it cannot be written is logged and stops nothing."""
        meta = about["metadata"]
        namespace = meta.get("namespace") or "default"
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
        body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "name": f"{meta['name'][:200]}.{uuid.uuid4().hex[:16]}",
                "namespace": namespace,
            },
            "eventTime": now.replace("+00:00", "Z"),
            "type": "Warning",
            "reason": reason[:128],
            "action": action,
            "note": note[:1024],
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "regarding": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "name": meta["name"],
                "uid": meta.get("uid"),
                **({"namespace": namespace} if meta.get("namespace") else {}),
            },
        }
        try:
            self._kube.create(paths.events(namespace), body)
        except ApiError as error:
            log.warning("could not write an event about %s: %s", meta["name"], error)
