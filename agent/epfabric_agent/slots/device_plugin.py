"""Slots as a device plugin's resource, for clusters without DRA; for slots.main.

A kubelet forgets plugins when it restarts and empties their folder: the plugin looks for a new
socket of the kubelet and begins again.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import grpc

from epfabric_agent.kubelet_plugin import listen
from epfabric_agent.proto import deviceplugin_pb2, deviceplugin_pb2_grpc
from epfabric_agent.slots.rails import Rail, environment

RESOURCE = "epfabric.io/slot"
VERSION = "v1beta1"
SOCKET = "epfabric.sock"
LOOK_S = 1.0
CALL_S = 5.0
STOP_S = 1.0
_ID = re.compile(r"rail-(\d+)-slot-\d+")
_log = logging.getLogger(__name__)


class PluginService(deviceplugin_pb2_grpc.DevicePluginServicer):
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rails: tuple[Rail, ...] = ()
        self._version = 0

    def use(self, rails: tuple[Rail, ...]) -> None:
        with self._changed:
            if rails != self._rails:
                self._rails = rails
                self._version += 1
                self._changed.notify_all()

    def GetDevicePluginOptions(
        self, request: deviceplugin_pb2.Empty, context: grpc.ServicerContext
    ) -> deviceplugin_pb2.DevicePluginOptions:
        return deviceplugin_pb2.DevicePluginOptions(get_preferred_allocation_available=True)

    def ListAndWatch(
        self, request: deviceplugin_pb2.Empty, context: grpc.ServicerContext
    ) -> Iterator[deviceplugin_pb2.ListAndWatchResponse]:
        seen = -1
        while context.is_active():
            with self._changed:
                if self._version == seen:
                    self._changed.wait(LOOK_S)
                if self._version == seen:
                    continue
                seen, rails = self._version, self._rails
            yield deviceplugin_pb2.ListAndWatchResponse(devices=devices(rails))

    def GetPreferredAllocation(
        self, request: deviceplugin_pb2.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> deviceplugin_pb2.PreferredAllocationResponse:
        return deviceplugin_pb2.PreferredAllocationResponse(
            container_responses=[
                deviceplugin_pb2.ContainerPreferredAllocationResponse(
                    deviceIDs=spread(
                        asked.available_deviceIDs,
                        asked.must_include_deviceIDs,
                        asked.allocation_size,
                    )
                )
                for asked in request.container_requests
            ]
        )

    def Allocate(
        self, request: deviceplugin_pb2.AllocateRequest, context: grpc.ServicerContext
    ) -> deviceplugin_pb2.AllocateResponse:
        return deviceplugin_pb2.AllocateResponse(
            container_responses=[
                deviceplugin_pb2.ContainerAllocateResponse(
                    envs=environment({rail_of(found) for found in asked.devices_ids})
                )
                for asked in request.container_requests
            ]
        )

    def PreStartContainer(
        self, request: deviceplugin_pb2.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> deviceplugin_pb2.PreStartContainerResponse:
        return deviceplugin_pb2.PreStartContainerResponse()


def devices(rails: tuple[Rail, ...]) -> list[deviceplugin_pb2.Device]:
    found = []
    for rail in rails:
        near = [deviceplugin_pb2.NUMANode(ID=rail.numa)] if rail.numa >= 0 else []
        found += [
            deviceplugin_pb2.Device(
                ID=f"{rail.name}-slot-{slot}",
                health="Healthy",
                topology=deviceplugin_pb2.TopologyInfo(nodes=near) if near else None,
            )
            for slot in range(rail.slots)
        ]
    return found


def rail_of(device: str) -> int:
    match = _ID.fullmatch(device)
    return int(match[1]) if match else 0


def spread(available: Iterable[str], must: Iterable[str], size: int) -> list[str]:
    """`size` devices, those of `must` first; each further one of the rail with the fewest yet."""
    chosen = list(must)
    free = sorted(set(available) - set(chosen), key=lambda d: (rail_of(d), d))
    while free and len(chosen) < size:
        used = [rail_of(device) for device in chosen]
        best = min(free, key=lambda device: (used.count(rail_of(device)), rail_of(device)))
        chosen.append(best)
        free.remove(best)
    return chosen


class Registrar:
    """Serves in the kubelet's folder and registers with each kubelet that comes."""

    def __init__(self, folder: Path, service: PluginService) -> None:
        self._folder = folder
        self._service = service
        self._server: grpc.Server | None = None
        self._known: tuple[int, int] | None = None

    def look(self) -> None:
        """Registers where the kubelet's socket is a new one, or ours is gone."""
        try:
            found = (self._folder / "kubelet.sock").stat()
        except FileNotFoundError:
            return
        stamp = (found.st_ino, found.st_ctime_ns)
        if stamp == self._known and (self._folder / SOCKET).exists():
            return
        self.stop()
        self._server = listen(
            self._folder / SOCKET,
            lambda server: deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(
                self._service, server
            ),
        )
        try:
            self._register()
            self._known = stamp
            _log.info("registered %s with the kubelet", RESOURCE)
        except grpc.RpcError as error:
            self._known = None
            _log.warning("the kubelet does not take %s: %s", RESOURCE, error)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(STOP_S).wait(STOP_S)
            self._server = None

    def _register(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        address = f"unix:{self._folder / 'kubelet.sock'}"
        with grpc.insecure_channel(address, options=options) as channel:
            deviceplugin_pb2_grpc.RegistrationStub(channel).Register(
                deviceplugin_pb2.RegisterRequest(
                    version=VERSION,
                    endpoint=SOCKET,
                    resource_name=RESOURCE,
                    options=deviceplugin_pb2.DevicePluginOptions(
                        get_preferred_allocation_available=True
                    ),
                ),
                timeout=CALL_S,
            )
