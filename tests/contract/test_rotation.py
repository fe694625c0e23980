"""The agents' authority is replaced in its Secret: first trusted, then signing, then alone."""

from __future__ import annotations

import base64
import datetime
import json

from contract.stand import NAMESPACE, NODES_NAMESPACE, Stand
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from epfabric_crds import names
from epfabric_operator.authority import AUTHORITY_DAYS, Authority, make_authority
from epfabric_operator.rotation import OVERLAP, SETTLED
from harness.process import Process


def test_an_authority_that_ends_soon_is_replaced_step_by_step(
    stand: Stand, operator: Process
) -> None:
    now = datetime.datetime.now(datetime.UTC)
    old = make_authority(now - datetime.timedelta(days=AUTHORITY_DAYS) + OVERLAP / 2)

    def secret() -> dict[str, bytes]:
        found = stand.api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{names.CA_SECRET}")
        return {key: base64.b64decode(value) for key, value in found["data"].items()}

    def put(**data: bytes | None) -> None:
        text = {
            key.replace("_", "."): value and base64.b64encode(value).decode()
            for key, value in data.items()
        }
        stand.cluster.kubectl(
            *("patch", "secret", names.CA_SECRET, "-n", NAMESPACE, "--type=merge"),
            *("-p", json.dumps({"data": text})),
        )

    def bundle() -> set[bytes]:
        found = stand.find("configmap", names.CA_BUNDLE, "-n", NODES_NAMESPACE) or {"data": {}}
        text = found["data"].get(names.CA_BUNDLE_KEY, "").encode()
        if not text:
            return set()
        return {each.public_bytes(Encoding.PEM) for each in x509.load_pem_x509_certificates(text)}

    stand.eventually(lambda: bool(bundle()), "the first bundle", operator)
    put(tls_crt=old.certificate, tls_key=old.key)
    stand.eventually(lambda: "next.crt" in secret(), "another to be made", operator)
    both = {old.certificate, secret()["next.crt"]}
    stand.eventually(lambda: bundle() == both, "both to be trusted", operator)
    assert secret()["tls.crt"] == old.certificate, "the old one signs until all trust the new one"

    new: Authority = make_authority(now - SETTLED)
    put(next_crt=new.certificate, next_key=new.key)
    stand.eventually(lambda: secret()["tls.crt"] == new.certificate, "the new to sign", operator)
    assert secret()["former.crt"] == old.certificate
    assert "next.key" not in secret()
    both = {old.certificate, new.certificate}
    stand.eventually(lambda: bundle() == both, "both to be trusted", operator)

    long_ago = (now - 2 * SETTLED).isoformat().encode()
    put(**{"former-since": long_ago})
    stand.eventually(lambda: bundle() == {new.certificate}, "the old one to be dropped", operator)
    assert set(secret()) == {"tls.crt", "tls.key"}
