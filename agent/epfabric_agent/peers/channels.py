"""Options and credentials of the gRPC connections between agents; for peers.server and .client.

Both ends ping an idle connection each second, so that a machine that is gone is noticed in about
two; the pings are answered by gRPC's own threads, however busy the agent is.
"""

from __future__ import annotations

from collections.abc import Callable

import grpc

from epfabric_agent.pki.identity import Credentials

MAX_MESSAGE_BYTES = 64 << 20  # that opens an epoch of the largest world
MAX_REQUEST_BYTES = 256 << 10  # what a member says is small, or a list of ranks with a reason
KEEPALIVE_MS = 1000
KEEPALIVE_TIMEOUT_MS = 1500

_SHARED = [
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),  # the one that ends a silent connection
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]
SERVER_OPTIONS: list[tuple[str, str | int]] = [
    *_SHARED,
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),  # a second agent on the same port must fail
]


def client_options(dns_name: str) -> list[tuple[str, str | int]]:
    """Connections reach an address, but the certificate must be that of the agent's name."""
    return [
        *_SHARED,
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.ssl_target_name_override", dns_name),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]


def client_credentials(own: Credentials) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(own.ca, own.key, own.certificate)


def server_credentials(current: Callable[[], Credentials]) -> grpc.ServerCredentials:
    """`current` is asked at every handshake, so that a renewed certificate is used at once.

    Only a change is answered: gRPC (1.85) frees what it had before although another thread may be
    at a handshake with it, and then the agent crashes.
    """
    used = current()

    def configuration() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(used.key, used.certificate)], root_certificates=used.ca
        )

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        own = current()
        if own == used:
            return None
        used = own
        return configuration()

    return grpc.dynamic_ssl_server_credentials(
        configuration(), renewed, require_client_authentication=True
    )
