"""Certificates of running agents end, and their authority is replaced: no session notices.

The operator signs for seconds here, so that what takes days and years takes half a minute.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
import signal
from collections.abc import Iterator

import pytest
from contract.real_agents import RUN_S, Site, running_site
from contract.stand import NAMESPACE, NODES_NAMESPACE, Stand
from contract.test_agent_kubernetes import completed
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from epfabric_crds import names
from epfabric_operator.rotation import OVERLAP
from harness.process import Process

pytestmark = pytest.mark.timeout(300)
LIFE_S = 8
STOP_S = 40.0  # so that it gives the Lease back
SECOND = datetime.timedelta(seconds=1)


@pytest.fixture
def signing(stand: Stand) -> Iterator[list[Process]]:
    """The operator, to which the test may give a successor."""
    running = [launch(stand)]
    yield running
    running[-1].stop(STOP_S)


def launch(stand: Stand) -> Process:
    # A busy machine does not lose the Lease; one that stops gives it back, or is followed soon.
    options = (f"--certificate-seconds={LIFE_S}", "--lease-seconds=45")
    return stand.launch_operator("brief", *options)


def age(stand: Stand) -> None:
    """The authority of now, but that it ends soon: the same name and key."""
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/{names.CA_SECRET}"
    data = {k: base64.b64decode(v) for k, v in stand.api.get(path)["data"].items()}
    now = x509.load_pem_x509_certificate(data["tls.crt"])
    key = serialization.load_pem_private_key(data["tls.key"], None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    builder = (
        x509.CertificateBuilder()
        .issuer_name(now.issuer)
        .subject_name(now.subject)
        .public_key(now.public_key())
        .serial_number(now.serial_number)
        .not_valid_before(now.not_valid_before_utc)
        .not_valid_after(datetime.datetime.now(datetime.UTC) + OVERLAP / 2)
    )
    for extension in now.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    text = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    patch = {"data": {"tls.crt": base64.b64encode(text).decode()}}
    stand.cluster.kubectl(
        *("patch", "secret", names.CA_SECRET, "-n", NAMESPACE, "--type=merge"),
        *("-p", json.dumps(patch)),
    )


def bundle(stand: Stand) -> list[bytes]:
    """Subjects of the authorities that agents are to trust."""
    found = stand.find("configmap", names.CA_BUNDLE, "-n", NODES_NAMESPACE)
    text = found["data"][names.CA_BUNDLE_KEY].encode()
    return [c.subject.public_bytes() for c in x509.load_pem_x509_certificates(text)]


def published(stand: Stand) -> datetime.datetime:
    """When the bundle changed last, to the second."""
    found = stand.api.get(f"/api/v1/namespaces/{NODES_NAMESPACE}/configmaps/{names.CA_BUNDLE}")
    times = [field["time"] for field in found["metadata"]["managedFields"]]
    return datetime.datetime.fromisoformat(max(times))


def certificates(site: Site) -> dict[str, list[x509.Certificate]]:
    """What each agent of the fabric got, in the order of time."""
    path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    items = site.stand.api.get(path, labelSelector=f"{names.FABRIC_LABEL}={site.fabric}")["items"]
    found: dict[str, list[x509.Certificate]] = {node: [] for node in site.agents}
    for item in items:
        if text := item.get("status", {}).get("certificate"):
            (node,) = item["spec"]["extra"]["authentication.kubernetes.io/node-name"]
            found[node].append(x509.load_pem_x509_certificate(base64.b64decode(text)))
    return {n: sorted(each, key=lambda c: c.not_valid_after_utc) for n, each in found.items()}


def check_turn(
    every: list[x509.Certificate],
    old: bytes,
    trusted: datetime.datetime,
    dropped: datetime.datetime,
) -> None:
    """At no time did an agent show a certificate that another one could not know.

    Agents read the bundle with each certificate, so what an agent trusts is as old as its own.
    """
    life = datetime.timedelta(seconds=LIFE_S)
    olds = [c.not_valid_after_utc for c in every if c.issuer.public_bytes() == old]
    first_new = min(c.not_valid_after_utc for c in every if c.issuer.public_bytes() != old) - life
    before = [end for end in olds if end - life < trusted]
    assert before, "agents were certified before there was a new authority"
    assert max(before) <= first_new, "it signs when nobody goes by the bundle of before"
    assert max(olds) <= dropped + SECOND, (
        "the old one is trusted while a certificate of it is valid"
    )


def rounds(rank: Process) -> int:
    """How many rounds, each with its barriers, the rank has begun."""
    return len(re.findall(r"^iteration ", rank.log.read_text(), re.MULTILINE))


def test_a_group_runs_on_while_certificates_end_and_their_authority_is_replaced(
    stand: Stand, signing: list[Process]
) -> None:
    with running_site(stand, f"{stand.prefix}-brief", 2) as site:
        agents = site.agents.values()
        ranks = site.ranks("long", 2, "--iterations=600", "--pause-s=0.5", "--progress")
        everyone = (*agents, *ranks)

        def go_on(what: str) -> None:
            seen = [rounds(rank) for rank in ranks]
            more = lambda: all(rounds(r) > n + 1 for r, n in zip(ranks, seen, strict=True))  # noqa: E731
            stand.eventually(more, f"rounds {what}", *everyone)

        go_on("at the beginning")
        (old,) = bundle(stand)
        age(stand)
        stand.eventually(lambda: len(bundle(stand)) == 2, "two authorities", *everyone, *signing)
        (new,) = set(bundle(stand)) - {old}
        trusted = published(stand)
        # Groups need new connections, and agents may have certificates of either.
        site.run("between", 2)

        def renewed() -> bool:
            return all(e[-1].issuer.public_bytes() == new for e in certificates(site).values())

        stand.eventually(renewed, "certificates of the new one", *everyone, *signing)
        site.run("after", 2)
        go_on("with certificates of the new one")

        # Nobody signs: what the agents have ends, and what is connected stays.
        signing[-1].stop(STOP_S)
        last = max(each[-1].not_valid_after_utc for each in certificates(site).values())
        ended = lambda: datetime.datetime.now(datetime.UTC) > last  # noqa: E731
        stand.eventually(ended, "the last certificate to end", *everyone)
        go_on("without a valid certificate")

        signing.append(launch(stand))
        stand.eventually(lambda: bundle(stand) == [new], "the old one to go", *everyone)
        dropped = published(stand)
        site.run("alone", 2)
        check_turn([c for each in certificates(site).values() for c in each], old, trusted, dropped)
        for rank in ranks:
            rank.signal(signal.SIGUSR1)
        for rank in ranks:
            assert rank.wait(RUN_S) == 0, rank.tail()
            result = json.loads(rank.log.read_text().strip().splitlines()[-1])
            assert (result["ok"], result["epoch"], result["iterations"]) == (True, 1, 600)
        completed(site, "long", 1)
