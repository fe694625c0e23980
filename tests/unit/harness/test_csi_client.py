"""The harness's CSI client reaches the driver whose socket it was given, never another's."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
from epfabric_agent.csi.request import DRIVER
from epfabric_agent.kubelet_plugin import Plugin, RegistrationService
from epfabric_agent.proto import registration_pb2_grpc
from harness import csi_client

DRIVERS = 4
ROUNDS = 25


@contextmanager
def registering(folder: Path) -> Iterator[Path]:
    """A registration socket in `folder` whose driver says that its endpoint lies there too."""
    folder.mkdir()
    server = grpc.server(ThreadPoolExecutor(2))
    registration_pb2_grpc.add_RegistrationServicer_to_server(
        RegistrationService(
            Plugin("CSIPlugin", DRIVER, folder / "csi.sock", ("1.0.0",)), lambda: None
        ),
        server,
    )
    server.add_insecure_port(f"unix:{folder}/reg.sock")
    server.start()
    try:
        yield folder / "reg.sock"
    finally:
        server.stop(None).wait(5)


def test_each_socket_is_answered_by_its_own_driver(tmp_path: Path) -> None:
    """One after another: the same descriptor number stands for another folder each time."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(registering(tmp_path / str(i))) for i in range(DRIVERS)]
        for _ in range(ROUNDS):
            for socket in sockets:
                _, endpoint = csi_client.register(socket)
                assert endpoint == str(socket.with_name("csi.sock"))
