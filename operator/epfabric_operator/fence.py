"""A client of the API server that writes only while this process leads; made by main.py.

The look at the tenure comes right before each piece of a request goes to the kernel, after
connecting, so that no wait lies between. What the kernel has not sent when a connection is given
up is dropped, so that a network that heals delivers no old write.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

import urllib3
from kubernetes import client

from epfabric_operator.tenure import Tenure

WRITES = ("POST", "PUT", "PATCH", "DELETE")
LINGER = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def fence(api: client.ApiClient, tenure: Tenure) -> None:
    """From now on every request of `api` but GET needs the tenure; else it raises NotLeading."""

    class Guarded:
        """For a connection class of urllib3."""

        _method: str | None
        sock: socket.socket | None

        def send(self, data: Any) -> None:
            if self.sock is None:
                self.connect()  # type: ignore[attr-defined]
            if self._method in WRITES:
                tenure.write_s()
            super().send(data)  # type: ignore[misc]

    class Plain(Guarded, urllib3.connection.HTTPConnection):
        pass

    class Tls(Guarded, urllib3.connection.HTTPSConnection):
        pass

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class TlsPool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Tls

    pools = api.rest_client.pool_manager
    pools.pool_classes_by_scheme = {"http": PlainPool, "https": TlsPool}
    options = urllib3.connection.HTTPConnection.default_socket_options
    pools.connection_pool_kw["socket_options"] = [*options, LINGER]
