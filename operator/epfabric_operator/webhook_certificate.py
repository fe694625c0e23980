"""Keeps the webhook's certificate, signed by the agents' authority; called by the work loop.

The API server trusts the authorities' bundle for the webhook alone. While the authority is replaced
the bundle holds both, so that either certificate is taken (rotation.py).
"""

from __future__ import annotations

import base64
import datetime
import logging
from collections.abc import Callable, Mapping

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from epfabric_crds import names

from epfabric_operator import paths
from epfabric_operator.kube import Kube
from epfabric_operator.rotation import Authorities
from epfabric_operator.serving import issue, pem_of

LIFE = datetime.timedelta(days=30)
log = logging.getLogger(__name__)


def is_due(
    data: Mapping[str, bytes], authorities: Authorities, name: str, now: datetime.datetime
) -> bool:
    """Whether another certificate must be made: none is there, half its life is over, it is for
    another name, or another authority signs now."""
    try:
        found = x509.load_pem_x509_certificate(data["tls.crt"])
        key = serialization.load_pem_private_key(data["tls.key"], None)
        found.verify_directly_issued_by(
            x509.load_pem_x509_certificate(authorities.signing.certificate)
        )
        alternatives = found.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except Exception:  # whatever is wrong with it, a new one is right
        return True
    begin, end = found.not_valid_before_utc, found.not_valid_after_utc
    named = alternatives.value.get_values_for_type(x509.DNSName) == [name]
    return not named or found.public_key() != key.public_key() or now >= begin + (end - begin) / 2


class WebhookCertificate:
    def __init__(
        self,
        kube: Kube,
        namespace: str,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._now = now
        self._name = f"{names.WEBHOOK}.{namespace}.svc"

    def refresh(self, authorities: Authorities) -> None:
        """Secret and caBundle as they should be now. Raises ApiError."""
        # First who is trusted, then what they vouch for.
        self._trust(authorities.bundle)
        secrets = paths.secrets(self._namespace)
        secret = self._kube.get(f"{secrets}/{names.WEBHOOK}")
        data = {k: base64.b64decode(v) for k, v in ((secret or {}).get("data") or {}).items()}
        now = self._now()
        if not is_due(data, authorities, self._name, now):
            return
        issuer = x509.load_pem_x509_certificate(authorities.signing.certificate)
        signer = serialization.load_pem_private_key(authorities.signing.key, None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        made = {
            "tls.crt": issue([self._name], key, (issuer, signer), now, LIFE),
            "tls.key": pem_of(key),
        }
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": (secret or {}).get("metadata")
            or {"name": names.WEBHOOK, "namespace": self._namespace},
            "type": "kubernetes.io/tls",
            "data": {k: base64.b64encode(v).decode() for k, v in made.items()},
        }
        if secret is None:
            self._kube.create(secrets, body)
        else:
            self._kube.replace(f"{secrets}/{names.WEBHOOK}", body)
        log.info("signed a certificate for the webhook")

    def _trust(self, bundle: bytes) -> None:
        path = f"{paths.WEBHOOKS}/{names.INJECT_POLICY}"
        found = self._kube.get(path)
        if found is None:
            return  # the chart is being installed, or renders a policy by now
        wanted = base64.b64encode(bundle).decode()
        configs = [webhook["clientConfig"] for webhook in found.get("webhooks") or ()]
        if any(config.get("caBundle") != wanted for config in configs):
            for config in configs:
                config["caBundle"] = wanted
            self._kube.replace(path, found)
            log.info("told the API server who vouches for the webhook")
