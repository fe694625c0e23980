"""What a real operator did is in a real Prometheus, by the names that docs/telemetry.md gives."""

from __future__ import annotations

import os
import re
from pathlib import Path

from contract.stand import WAIT_S, Stand
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from harness.process import wait_until
from harness.prometheus import Prometheus
from telemetry.dashboards import unanswered

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()


def test_the_operators_metrics_arrive(stand: Stand, prometheus: Prometheus) -> None:
    name = f"{stand.prefix}-metrics"
    node = f"{name}-node"
    stand.node(node, name)
    stand.apply(stand.fabric(name))
    environ = {
        **os.environ,
        "POD_NAME": name,
        "OTEL_EXPORTER_OTLP_ENDPOINT": prometheus.otlp,
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
    }
    operator = stand.launch_operator("metrics", env=environ)

    def value(metric: str, **labels: str) -> float | None:
        wanted = ", ".join(f'{k}="{v}"' for k, v in ({"instance": name} | labels).items())
        rows = prometheus.query(f"epfabric_operator_{metric}{{{wanted}}}")
        return float(rows[0]["value"][1]) if rows else None

    def becomes(expected: float, metric: str, **labels: str) -> None:
        text = f"{metric} {labels} to be {expected}"
        wait_until(lambda: value(metric, **labels) == expected, WAIT_S, text, operator)

    def nodes(**counts: int) -> None:
        for state, count in counts.items():
            state = state.replace("_", "-")
            becomes(count, "nodes", epfabric_fabric=name, epfabric_state=state)

    becomes(1, "leading")
    stand.eventually(lambda: stand.find("epfn", node) is not None, node, operator)
    nodes(failing=1, ready=0)
    stand.agent(node)
    nodes(failing=0, ready=1, contested=0, not_ready=0)
    refused = stand.csr(f"{name}-csr", some_request(), ["client auth", "server auth"])
    stand.objects.create(refused)
    why = {"epfabric_result": "refused", "epfabric_reason": "WrongAccount"}
    becomes(1, "certificates_total", **why)
    done = value("reconciles_total", epfabric_kind="fabric", epfabric_result="done")
    assert done is not None
    assert done >= 2
    assert value("reconciles_total", epfabric_result="fault") is None
    (count,) = prometheus.query(
        f'histogram_count(epfabric_operator_reconcile_duration_seconds{{instance="{name}",'
        ' epfabric_kind="fabric"})'
    )
    assert float(count["value"][1]) >= done
    age = value("success_age_seconds")
    assert age is not None
    assert age < WAIT_S
    assert (value("fabrics", epfabric_ready="true") or 0) >= 1
    named = set(re.findall(r"^\| `(epfabric\.operator\.[a-z.]+)` \| ", PAGE, re.MULTILINE))
    sent = prometheus.query(f'{{__name__=~"epfabric_operator_.*", instance="{name}"}}')
    assert {base(row["metric"]["__name__"]) for row in sent} == {
        name.replace(".", "_") for name in named
    }
    assert unanswered(prometheus, "operator") == {}
    stand.delete("epf", name)
    assert operator.stop() == 0
    # It sent once more when it ended, and leads no more.
    assert value("leading") == 0


def some_request() -> bytes:
    """PEM of a certificate request; an administrator may file it, but gets nothing for it."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    signed = request.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def base(name: str) -> str:
    """Without what Prometheus adds for unit and kind."""
    return name.removesuffix("_total").removesuffix("_seconds")
