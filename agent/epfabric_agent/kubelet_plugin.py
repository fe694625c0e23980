"""Unix sockets by which a kubelet finds and calls a program of the node; for csi and slots."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc

from epfabric_agent.proto import registration_pb2, registration_pb2_grpc

THREADS = 16
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plugin:
    """`kind` is CSIPlugin or DRAPlugin; `endpoint` as the kubelet sees it."""

    kind: str
    name: str
    endpoint: Path
    versions: tuple[str, ...]


class RegistrationService(registration_pb2_grpc.RegistrationServicer):
    """Answers the kubelet that found the registration socket; `refused` ends the program."""

    def __init__(self, plugin: Plugin, refused: Callable[[], None]) -> None:
        self._plugin = plugin
        self._refused = refused

    def GetInfo(
        self, request: registration_pb2.InfoRequest, context: grpc.ServicerContext
    ) -> registration_pb2.PluginInfo:
        return registration_pb2.PluginInfo(
            type=self._plugin.kind,
            name=self._plugin.name,
            endpoint=str(self._plugin.endpoint),
            supported_versions=self._plugin.versions,
        )

    def NotifyRegistrationStatus(
        self, request: registration_pb2.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration_pb2.RegistrationStatusResponse:
        if request.plugin_registered:
            log.info("the kubelet has registered %s", self._plugin.name)
        else:
            log.error("the kubelet refused %s: %s", self._plugin.name, request.error)
            self._refused()
        return registration_pb2.RegistrationStatusResponse()


def register(path: Path, plugin: Plugin, refused: Callable[[], None]) -> grpc.Server:
    """The socket in the kubelet's plugins_registry; unlink it to take the plugin away."""
    service = RegistrationService(plugin, refused)
    return listen(
        path,
        lambda server: registration_pb2_grpc.add_RegistrationServicer_to_server(service, server),
    )


def listen(path: Path, add_services: Callable[[grpc.Server], None]) -> grpc.Server:
    """A server on a unix socket that only root can connect to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(THREADS, thread_name_prefix="kubelet"))
    add_services(server)
    mask = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{path}")
    finally:
        os.umask(mask)
    server.start()
    return server
