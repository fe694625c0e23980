"""Certificates: requests that nobody signs or that were refused, and the authority's end."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from cryptography import x509

from epfabric_operator.cli import output
from epfabric_operator.cli.doctor.facts import Facts, Finding, some

PENDING_S = 120.0
RECENT_S = 86400.0
SOON = datetime.timedelta(days=7)


def check(facts: Facts) -> Iterator[Finding]:
    pending, denied = [], {}
    for request in facts.requests or ():
        status = request.get("status", {})
        age_s = output.age_s(request["metadata"].get("creationTimestamp"), facts.now) or 0.0
        for condition in status.get("conditions", ()):
            if condition["type"] in ("Denied", "Failed") and age_s < RECENT_S:
                denied[request["metadata"]["name"]] = condition.get("message", "")
        if not status.get("conditions") and age_s > PENDING_S:
            pending.append(request["metadata"]["name"])
    if pending:
        yield Finding(
            "error",
            "unsigned-requests",
            some(pending),
            f"{len(pending)} certificate requests of agents have waited for over two minutes",
            "without a certificate an agent serves no sessions over several nodes",
            "the operator signs them: is one leading? Its log says what it finds wrong",
        )
    for name, why in list(denied.items())[:5]:
        yield Finding(
            "warning",
            "denied-request",
            name,
            why or "denied without a message",
            "that agent has no certificate, or keeps its old one until that ends",
            "the message says what the request lacked; an agent asks again by itself",
        )
    yield from _authority(facts)


def _authority(facts: Facts) -> Iterator[Finding]:
    if not facts.authority:
        return
    try:
        found = x509.load_pem_x509_certificates(facts.authority.encode())
    except ValueError:
        found = []
    last = max((one.not_valid_after_utc for one in found), default=None)
    if last is None or last - facts.now < SOON:
        yield Finding(
            "error",
            "authority-ends",
            "epfabric-ca",
            f"the last authority that agents trust ends {last}" if last else "it holds none",
            "agents will not trust each other",
            "the operator makes a new one thirty days before: is it running? Its log says why not",
        )
