"""When the webhook's certificate is made anew."""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from epfabric_operator.authority import Authority, make_authority
from epfabric_operator.rotation import Authorities
from epfabric_operator.serving import issue, pem_of
from epfabric_operator.webhook_certificate import LIFE, is_due

NOW = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
NAME = "webhook.here.svc"


def made(by: Authority, name: str = NAME) -> dict[str, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    signer = serialization.load_pem_private_key(by.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = (x509.load_pem_x509_certificate(by.certificate), signer)
    return {"tls.crt": issue([name], key, issuer, NOW, LIFE), "tls.key": pem_of(key)}


def test_a_certificate_is_kept_until_half_its_life_is_over() -> None:
    by = make_authority(NOW)
    data = made(by)
    for days, due in ((0, False), (14, False), (15.1, True), (31, True)):
        assert is_due(data, Authorities(by), NAME, NOW + datetime.timedelta(days=days)) is due


def test_what_cannot_serve_is_replaced() -> None:
    by, other = make_authority(NOW), make_authority(NOW)
    data = made(by)
    for wrong in (
        {},
        {"tls.crt": data["tls.crt"]},
        {**data, "tls.crt": b"text"},
        {**data, "tls.key": made(by)["tls.key"]},
        made(by, "another.here.svc"),
        made(other),
    ):
        assert is_due(wrong, Authorities(by), NAME, NOW)


def test_it_follows_the_authority_that_signs_and_not_the_one_to_come() -> None:
    by, next_one = make_authority(NOW), make_authority(NOW)
    data = made(by)
    assert not is_due(data, Authorities(by, next_one), NAME, NOW)
    assert is_due(data, Authorities(next_one, None, by.certificate, NOW), NAME, NOW)
