"""kopf's part: events of our resources and of certificate requests become work; started by main.py.

Handlers hold no logic, and there are only event handlers: no finalizer, no annotation, no timer.
"""

from __future__ import annotations

import threading
from typing import Any

import kopf
from epfabric_crds import names
from kubernetes import client

from epfabric_operator.worklist import EVERYTHING, Work, Worklist

SERVER_TIMEOUT_S = 300
CLIENT_TIMEOUT_S = 310


def settings() -> kopf.OperatorSettings:
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.scanning.disabled = True
    made.watching.server_timeout = SERVER_TIMEOUT_S
    made.watching.client_timeout = CLIENT_TIMEOUT_S
    return made


def registry(worklist: Worklist, api: client.ApiClient) -> kopf.OperatorRegistry:
    made = kopf.OperatorRegistry()

    @kopf.on.login(registry=made)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return connection(api.configuration)

    @kopf.on.event(names.GROUP, names.VERSION, names.FABRICS, registry=made)
    def fabric(**_: Any) -> None:
        # Every fabric: one that goes or changes its selector sets nodes free for the others.
        worklist.add(EVERYTHING)

    @kopf.on.event(
        "certificates.k8s.io",
        "v1",
        "certificatesigningrequests",
        registry=made,
        when=lambda spec, **_: spec.get("signerName") == names.SIGNER,
    )
    def csr(name: str, **_: Any) -> None:
        worklist.add(Work("csr", name), after_s=0)

    return made


def connection(configuration: client.Configuration) -> kopf.ConnectionInfo:
    """kopf's credentials from those that the operator's own client has."""
    header = configuration.get_api_key_with_prefix("BearerToken")
    header = header or configuration.get_api_key_with_prefix("authorization") or ""
    scheme, _, token = header.rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )


def run(worklist: Worklist, api: client.ApiClient, identity: str, stop: threading.Event) -> None:
    """Watch until stopped. Runs outside the main thread, so that signals stay main.py's.

    Without an identity kopf asks for the user's name, and the image's user has none.
    """
    named: Any = identity  # kopf's type for it is private
    kopf.run(
        registry=registry(worklist, api),
        settings=settings(),
        standalone=True,
        clusterwide=True,
        identity=named,
        stop_flag=stop,
    )
