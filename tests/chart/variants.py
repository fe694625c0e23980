"""Values that people install the chart with: each is rendered, checked and scored."""

from __future__ import annotations

import yaml
from chart.objects import SYSTEM, Object
from harness import helm

VARIANTS: dict[str, Object] = {
    "default": {},
    "several operators": {
        "operator": {
            "replicas": 3,
            "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
            "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
            "telemetryEndpoint": "http://collector.telemetry:4318",
        }
    },
    "private registry": {
        "global": {"registry": "registry.example"},
        "images": {
            "operator": {"repository": "epfabric-operator", "tag": "9"},
            "agent": {"repository": "epfabric-agent", "digest": f"sha256:{'0' * 64}"},
            "csi": {"repository": "epfabric-csi", "pullPolicy": "Always"},
        },
        "imagePullSecrets": ["pull"],
    },
    "watched": {
        "dashboards": {"perses": {"enabled": True}},
        "alerts": {"kind": "PrometheusRule", "labels": {"release": "prometheus"}},
    },
    "watched by files": {
        "dashboards": {"grafana": {"enabled": False}},
        "alerts": {"kind": "ConfigMap", "runbook": "https://runbooks.example/epfabric"},
    },
    "openshift": {"openshift": {"enabled": True}, "kubeletRootDir": "/data/kubelet"},
    "classes and namespace of one's own": {
        "priorityClassName": "nodes",
        "operator": {"priorityClassName": "controllers"},
        "nodesNamespace": {"create": False},
        "agent": {"port": 0},
    },
    "by other tools": {"hooks": {"enabled": False}, "networkPolicy": {"enabled": False}},
    "leaves nothing": {
        "crds": {"keep": False},
        "uninstall": {"force": True, "timeoutSeconds": 600},
    },
    "older cluster": {
        "injection": {"policyVersion": "v1beta1"},
        "slots": {"mode": "device-plugin"},
    },
    "slots by DRA": {"slots": {"mode": "dra"}},
    "webhook": {"injection": {"mode": "webhook"}},
    "webhook with another's certificate": {
        "injection": {
            "mode": "webhook",
            "webhook": {"certManager": {"enabled": True, "issuerRef": {"name": "ours"}}},
        },
        "operator": {"metricsCertificate": "metrics"},
    },
}


def render_all() -> dict[str, dict[str, str]]:
    """By variant and template, manifests only."""
    return dict(zip(VARIANTS, render(*VARIANTS.values()), strict=True))


def render(*variants: Object) -> list[dict[str, str]]:
    """Each one's manifests by template."""
    values = [{"injection": {"policyVersion": "v1"}, **more} for more in variants]
    return [
        {path: text for path, text in one.items() if path.endswith(".yaml") and text.strip()}
        for one in helm.rendered(values, SYSTEM)
    ]


def objects(files: dict[str, str]) -> list[Object]:
    """What one variant's templates make."""
    return [one for text in files.values() for one in yaml.safe_load_all(text) if one]
