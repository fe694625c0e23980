"""Whether an agent's CertificateSigningRequest may be signed; pure, called by signer.py.

The API server itself writes username and extra into the request, so they say who asks: a pod of
the agents' account, and the node that its token is bound to.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from epfabric_crds import names

MOST_ADDRESSES = 4
LEAST_SECONDS = 600
USAGES = frozenset({"digital signature", "key encipherment", "client auth", "server auth"})
_DNS = re.compile(r"(?P<node>[a-z0-9.-]{1,253})\.(?P<fabric>[a-z0-9-]{1,63})\.agents\.epfabric\.io")

AgentKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Refused(Exception):
    """The request must not be signed; reason is one word, the text a sentence for people."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class AgentRequest:
    """What goes into the certificate."""

    node: str
    fabric: str
    common_name: str
    dns_name: str
    addresses: tuple[Address, ...]
    public_key: AgentKey
    seconds: int


def is_open(csr: Mapping[str, Any]) -> bool:
    """For us, and neither denied, failed nor signed yet."""
    status = csr.get("status") or {}
    ended = {c["type"] for c in status.get("conditions") or ()} & {"Denied", "Failed"}
    return (
        csr["spec"].get("signerName") == names.SIGNER
        and not ended
        and not status.get("certificate")
    )


@dataclass(frozen=True)
class AskingNode:
    """What the cluster knows of the node that asks."""

    fabric: str | None
    addresses: frozenset[Address]


def asking_node(csr: Mapping[str, Any]) -> str | None:
    """Name of the one node that the asking token is bound to."""
    bound = (csr["spec"].get("extra") or {}).get(names.NODE_NAME_EXTRA) or []
    return str(bound[0]) if len(bound) == 1 else None


def node_facts(node: Mapping[str, Any]) -> AskingNode:
    """From the Node object; addresses that are host names are left out."""
    found = set()
    for entry in (node.get("status") or {}).get("addresses") or ():
        with contextlib.suppress(ValueError):
            found.add(ipaddress.ip_address(entry["address"]))
    labels = node["metadata"].get("labels") or {}
    return AskingNode(labels.get(names.FABRIC_LABEL), frozenset(found))


def check(csr: Mapping[str, Any], namespace: str, node: AskingNode | None) -> AgentRequest:
    """What to sign. `node` is the one that `asking_node` names. Raises Refused."""
    spec = csr["spec"]
    account = f"system:serviceaccount:{namespace}:{names.AGENT_ACCOUNT}"
    if spec.get("username") != account:
        raise Refused("WrongAccount", f"only {account} may ask, not {spec.get('username')}")
    bound = asking_node(csr)
    if bound is None:
        raise Refused(
            "NoNode", "the token is not bound to a pod on a node: use the pod's own token"
        )
    usages = set(spec.get("usages") or ())
    if usages - USAGES or not {"client auth", "server auth"} <= usages:
        raise Refused("WrongUsages", f"usages must be {', '.join(sorted(USAGES))}")
    request = _parse(spec.get("request") or "", spec.get("expirationSeconds"))
    if request.node != bound:
        text = f"the token is bound to node {bound}, the certificate would name {request.node}"
        raise Refused("WrongNode", text)
    if node is None or node.fabric != request.fabric:
        text = f"node {request.node} does not belong to fabric {request.fabric}"
        raise Refused("WrongFabric", text)
    strange = [str(address) for address in request.addresses if address not in node.addresses]
    if strange:
        text = (
            f"{', '.join(strange)} is no address of node {request.node}, which has"
            f" {', '.join(sorted(map(str, node.addresses))) or 'none'}: start the agent with"
            " --address set to one of them"
        )
        raise Refused("WrongAddress", text)
    return request


def _parse(encoded: str, seconds: int | None) -> AgentRequest:
    try:
        pem = x509.load_pem_x509_csr(base64.b64decode(encoded, validate=True))
        signed = pem.is_signature_valid
        extension = pem.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        key = pem.public_key()
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension) as error:
        raise Refused("Unreadable", f"not a certificate request with names: {error}") from error
    if not signed:
        raise Refused("BadSignature", "the request is not signed by its own key")
    if not _strong(key):
        raise Refused(
            "WeakKey", "the key must be P-256, P-384, Ed25519 or RSA of 2048 bits or more"
        )
    names_ = extension.value
    addresses = tuple(names_.get_values_for_type(x509.IPAddress))
    dns = names_.get_values_for_type(x509.DNSName)
    match = _DNS.fullmatch(dns[0]) if len(dns) == 1 else None
    others = len(names_) - len(dns) - len(addresses)
    if match is None or others or not 1 <= len(addresses) <= MOST_ADDRESSES:
        text = "names must be one <node>.<fabric>.agents.epfabric.io and one to four IP addresses"
        raise Refused("WrongNames", text)
    if not all(isinstance(a, ipaddress.IPv4Address | ipaddress.IPv6Address) for a in addresses):
        raise Refused("WrongNames", "an IP address, not a network, is needed")
    common_name = names.COMMON_NAME_PREFIX + match["node"]
    subject = [attribute.value for attribute in pem.subject]
    # A common name holds 64 characters; longer ones are cut on both sides.
    if subject != [common_name[:64]]:
        raise Refused("WrongSubject", f"the subject must be CN={common_name[:64]} and nothing else")
    wanted = names.CERTIFICATE_SECONDS if seconds is None else seconds
    return AgentRequest(
        node=match["node"],
        fabric=match["fabric"],
        common_name=common_name[:64],
        dns_name=dns[0],
        addresses=addresses,  # type: ignore[arg-type]
        public_key=key,  # type: ignore[arg-type]
        seconds=max(LEAST_SECONDS, min(wanted, names.CERTIFICATE_SECONDS)),
    )


def _strong(key: object) -> bool:
    if isinstance(key, ec.EllipticCurvePublicKey):
        return isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1)
    if isinstance(key, rsa.RSAPublicKey):
        return key.key_size >= 2048
    return isinstance(key, ed25519.Ed25519PublicKey)
