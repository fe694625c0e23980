"""A stand-in for a GPU's device plugin, for test_gpus: a node runs `python -m node.gpu_plugin`.

Its GPUs are UUIDs, as NVIDIA's plugin names them; a container that is given one sees it in the
variable GPU.
"""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
from epfabric_agent.kubelet_plugin import listen
from epfabric_agent.proto import deviceplugin_pb2 as api
from epfabric_agent.proto import deviceplugin_pb2_grpc

RESOURCE = "test.epfabric/gpu"
FOLDER = Path("/var/lib/kubelet/device-plugins")
SOCKET = "gpu-test.sock"
REGISTER_S = 30.0


class Gpus(deviceplugin_pb2_grpc.DevicePluginServicer):
    def __init__(self, uuids: list[str]) -> None:
        self._uuids = uuids
        self.over = threading.Event()

    def GetDevicePluginOptions(
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> api.DevicePluginOptions:
        return api.DevicePluginOptions()

    def ListAndWatch(
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> Iterator[api.ListAndWatchResponse]:
        yield api.ListAndWatchResponse(
            devices=[api.Device(ID=uuid, health="Healthy") for uuid in self._uuids]
        )
        self.over.wait()

    def GetPreferredAllocation(
        self, request: api.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> api.PreferredAllocationResponse:
        return api.PreferredAllocationResponse()

    def PreStartContainer(
        self, request: api.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> api.PreStartContainerResponse:
        return api.PreStartContainerResponse()

    def Allocate(
        self, request: api.AllocateRequest, context: grpc.ServicerContext
    ) -> api.AllocateResponse:
        answer = api.AllocateResponse()
        for container in request.container_requests:
            answer.container_responses.add(envs={"GPU": ",".join(container.devices_ids)})
        return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uuids", nargs="+")
    options = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    gpus = Gpus(options.uuids)
    add = deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server
    server = listen(FOLDER / SOCKET, lambda server: add(gpus, server))
    with grpc.insecure_channel(f"unix:{FOLDER / 'kubelet.sock'}") as channel:
        deviceplugin_pb2_grpc.RegistrationStub(channel).Register(
            api.RegisterRequest(version="v1beta1", endpoint=SOCKET, resource_name=RESOURCE),
            timeout=REGISTER_S,
            wait_for_ready=True,
        )
    signal.sigwait({signal.SIGTERM})
    gpus.over.set()
    server.stop(None)
    (FOLDER / SOCKET).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
