"""The gRPC services of the CSI driver: Identity and Node; for main.

Requests of one volume exclude each other: the later one is told to come back (ABORTED).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

import grpc
from google.protobuf.wrappers_pb2 import BoolValue

from epfabric_agent.csi import volumes
from epfabric_agent.csi.apiserver import Unreachable
from epfabric_agent.csi.mounts import MountError
from epfabric_agent.csi.request import (
    DRIVER,
    Publication,
    RequestError,
    checked_target,
    checked_volume_id,
    publication,
)
from epfabric_agent.proto import csi_pb2, csi_pb2_grpc

log = logging.getLogger("epfabric-csi")


@dataclass(frozen=True)
class Answer:
    """Why a pod may not use its fabric, or None; and its tenant's name, or nothing."""

    refusal: str | None
    tenant: str


@dataclass(frozen=True)
class Settings:
    """What the Node service works on.

    `ask` says whether a pod may use its fabric, and as whose; it raises Unreachable.
    """

    node_name: str
    node: volumes.Node
    socket_wait_s: float
    ask: Callable[[Publication], Answer]


@dataclass
class Busy:
    """The volumes that a request is at work on."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _held: set[str] = field(default_factory=set)

    @contextmanager
    def hold(self, volume_id: str) -> Iterator[bool]:
        """Gives False if another request holds the volume."""
        with self._lock:
            free = volume_id not in self._held
            self._held.add(volume_id)
        try:
            yield free
        finally:
            if free:
                with self._lock:
                    self._held.remove(volume_id)


class IdentityService(csi_pb2_grpc.IdentityServicer):
    """Who the driver is."""

    def __init__(self, version: str) -> None:
        self._version = version

    def GetPluginInfo(
        self, request: csi_pb2.GetPluginInfoRequest, context: grpc.ServicerContext
    ) -> csi_pb2.GetPluginInfoResponse:
        return csi_pb2.GetPluginInfoResponse(name=DRIVER, vendor_version=self._version)

    def GetPluginCapabilities(
        self, request: csi_pb2.GetPluginCapabilitiesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.GetPluginCapabilitiesResponse:
        return csi_pb2.GetPluginCapabilitiesResponse()

    def Probe(
        self, request: csi_pb2.ProbeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.ProbeResponse:
        return csi_pb2.ProbeResponse(ready=BoolValue(value=True))


class NodeService(csi_pb2_grpc.NodeServicer):
    """Publishes and unpublishes volumes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._busy = Busy()

    def NodePublishVolume(
        self, request: csi_pb2.NodePublishVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodePublishVolumeResponse:
        settings = self._settings
        if request.volume_capability.HasField("block"):
            refuse(context, grpc.StatusCode.INVALID_ARGUMENT, f"{DRIVER} has no block volumes")
        with self._answering(context, request.volume_id):
            wanted = publication(
                request.volume_id,
                request.target_path,
                request.volume_context,
                settings.node.kubelet_root,
            )
            if not volumes.is_published(settings.node, wanted):
                answer = settings.ask(wanted)
                if answer.refusal:
                    volumes.abandon(settings.node, wanted)
                    refuse(context, grpc.StatusCode.PERMISSION_DENIED, answer.refusal)
                volumes.publish(settings.node, wanted, settings.socket_wait_s, answer.tenant)
            log.info("published %s for %s/%s", wanted.volume_id, wanted.namespace, wanted.pod)
        return csi_pb2.NodePublishVolumeResponse()

    def NodeUnpublishVolume(
        self, request: csi_pb2.NodeUnpublishVolumeRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeUnpublishVolumeResponse:
        settings = self._settings
        with self._answering(context, request.volume_id):
            volume_id = checked_volume_id(request.volume_id)
            target = checked_target(request.target_path, settings.node.kubelet_root)
            volumes.unpublish(settings.node, volume_id, target)
            log.info("unpublished %s", volume_id)
        return csi_pb2.NodeUnpublishVolumeResponse()

    def NodeGetCapabilities(
        self, request: csi_pb2.NodeGetCapabilitiesRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeGetCapabilitiesResponse:
        return csi_pb2.NodeGetCapabilitiesResponse()

    def NodeGetInfo(
        self, request: csi_pb2.NodeGetInfoRequest, context: grpc.ServicerContext
    ) -> csi_pb2.NodeGetInfoResponse:
        return csi_pb2.NodeGetInfoResponse(node_id=self._settings.node_name)

    @contextmanager
    def _answering(self, context: grpc.ServicerContext, volume_id: str) -> Iterator[None]:
        """Holds the volume and turns what can go wrong into the status that a kubelet expects."""
        with self._busy.hold(volume_id) as free:
            if not free:
                text = f"another request for the volume {volume_id[:140]!r} is at work: try again"
                refuse(context, grpc.StatusCode.ABORTED, text)
            try:
                yield
            except RequestError as error:
                refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except Unreachable as error:
                text = f"whether the pod may use its fabric could not be asked: {error}"
                refuse(context, grpc.StatusCode.UNAVAILABLE, text)
            except volumes.NotReady as error:
                refuse(context, grpc.StatusCode.UNAVAILABLE, str(error))
            except volumes.Conflict as error:
                refuse(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
            except (MountError, OSError) as error:
                refuse(context, grpc.StatusCode.INTERNAL, str(error))


def refuse(context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> NoReturn:
    log.warning("%s: %s", code.name, text)
    context.abort(code, text)
    raise AssertionError("abort returned")
