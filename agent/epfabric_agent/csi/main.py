"""The program `epfabric-csi`: one per node, started by the chart's DaemonSet."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from importlib.metadata import version
from pathlib import Path

import grpc

from epfabric_agent.csi import apiserver, permission, records, volumes
from epfabric_agent.csi.request import DRIVER, Publication
from epfabric_agent.csi.service import Answer, IdentityService, NodeService, Settings
from epfabric_agent.kubelet_plugin import Plugin, listen, register
from epfabric_agent.proto import csi_pb2_grpc

log = logging.getLogger("epfabric-csi")

UNIX = "unix://"
SUPPORTED_VERSIONS = ("1.0.0",)
SOCKET_WAIT_S = 2.0
API_TIMEOUT_S = 3.0
STOP_S = 10.0


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    try:
        endpoint = socket_path(options.endpoint)
        access = api_access(options.kubeconfig)
        node = volumes.Node(
            options.state_dir.absolute(),
            options.kubelet_root.absolute(),
            records.boot_id(),
            selinux=(options.selinuxfs / "enforce").exists(),
        )
        volumes.prepare(node)
    except (ValueError, OSError) as error:
        print(f"epfabric-csi: {error}", file=sys.stderr)
        return 2
    settings = Settings(
        node_name=options.node,
        node=node,
        socket_wait_s=SOCKET_WAIT_S,
        ask=lambda wanted: ask(access, wanted),
    )
    return serve(settings, endpoint, options.registration_socket)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="epfabric-csi", description=f"The CSI driver {DRIVER} of one node."
    )
    made.add_argument(
        "--endpoint",
        default=os.environ.get("CSI_ENDPOINT", "unix:///csi/csi.sock"),
        metavar="unix:///PATH",
        help="socket of the Identity and Node services, at the path where the kubelet sees it",
    )
    made.add_argument(
        "--selinuxfs",
        type=Path,
        default=Path("/sys/fs/selinux"),
        metavar="FOLDER",
        help="where the kernel shows SELinux; where it does, pods' folders are labelled",
    )
    made.add_argument(
        "--registration-socket",
        type=Path,
        metavar="PATH",
        help="socket in the kubelet's plugins_registry; without it nothing is registered",
    )
    made.add_argument(
        "--node",
        default=os.environ.get("NODE_NAME", ""),
        required="NODE_NAME" not in os.environ,
        metavar="NAME",
        help="name of the Node object (default: the variable NODE_NAME)",
    )
    made.add_argument(
        "--state-dir",
        type=Path,
        default=Path("/var/lib/epfabric"),
        metavar="DIR",
        help="the node's folder, shared with the agent",
    )
    made.add_argument(
        "--kubelet-root",
        type=Path,
        default=Path("/var/lib/kubelet"),
        metavar="DIR",
        help="the kubelet's --root-dir; targets outside it are refused",
    )
    made.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="how to reach the API server (default: the pod's service account)",
    )
    return made


def socket_path(endpoint: str) -> Path:
    path = Path(endpoint.removeprefix(UNIX))
    if not endpoint.startswith(UNIX) or not path.is_absolute():
        raise ValueError(f"--endpoint {endpoint!r} is not of the form unix:///absolute/path")
    return path


def api_access(kubeconfig: Path | None) -> apiserver.Access:
    if kubeconfig is not None:
        return apiserver.from_kubeconfig(kubeconfig)
    return apiserver.from_cluster(os.environ)


def ask(access: apiserver.Access, wanted: Publication) -> Answer:
    """Admission has decided already; this catches pods that were never asked, and old ones.

    Raises apiserver.Unreachable: what could not be checked is not allowed.
    """
    fabric = apiserver.get(access, apiserver.fabric_path(wanted.fabric), API_TIMEOUT_S)
    space = apiserver.get(access, apiserver.namespace_path(wanted.namespace), API_TIMEOUT_S)
    return Answer(
        permission.refusal(wanted.fabric, fabric, wanted.namespace, space),
        permission.tenant(fabric, space),
    )


def serve(settings: Settings, endpoint: Path, registration: Path | None) -> int:
    """Serves until a signal or a refusal by the kubelet; the exit status says which."""
    stop, refused = threading.Event(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def end_refused() -> None:
        refused.set()
        stop.set()

    servers = [listen(endpoint, lambda server: add_driver(server, settings))]
    if registration is not None:
        plugin = Plugin("CSIPlugin", DRIVER, endpoint, SUPPORTED_VERSIONS)
        servers.append(register(registration, plugin, end_refused))
    log.info("serving %s on %s", DRIVER, endpoint)
    stop.wait()
    if registration is not None:
        registration.unlink(missing_ok=True)
    for ended in [server.stop(STOP_S) for server in servers]:
        ended.wait(STOP_S)
    return 1 if refused.is_set() else 0


def add_driver(server: grpc.Server, settings: Settings) -> None:
    csi_pb2_grpc.add_IdentityServicer_to_server(IdentityService(version("epfabric-agent")), server)
    csi_pb2_grpc.add_NodeServicer_to_server(NodeService(settings), server)


if __name__ == "__main__":
    sys.exit(main())
