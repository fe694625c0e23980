"""The program `epfabric-slots`: one per node, started by the chart's DaemonSet where it is wanted.

Exit status: 0 ended by a signal; 1 the kubelet refused it; 2 cannot start.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from urllib.parse import quote

from epfabric_crds import EPFabricNode, MirrorError, names

from epfabric_agent.csi.records import boot_id
from epfabric_agent.kube import paths
from epfabric_agent.kube.api import Api, ApiError, Object, connect
from epfabric_agent.kubelet_plugin import Plugin, listen, register
from epfabric_agent.proto import dra_pb2_grpc
from epfabric_agent.slots.claims import Claims
from epfabric_agent.slots.device_plugin import PluginService, Registrar
from epfabric_agent.slots.dra import VERSIONS, DraService
from epfabric_agent.slots.rails import Rail, pcie_roots, rails_of
from epfabric_agent.slots.slices import Slices
from epfabric_agent.topology.machine import Machine
from epfabric_agent.topology.nics import find_nics
from epfabric_agent.topology.numa import find_cpus

LOOK_S = 5.0
KUBELET_LOOK_S = 1.0
STOP_S = 5.0
_log = logging.getLogger("epfabric-slots")


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    if not options.node:
        parser().error("which node is this? give --node NAME (or set NODE_NAME)")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        api = connect(options.kubeconfig)
        serve = serve_dra if options.mode == "dra" else serve_device_plugin
        return serve(api, options, stop)
    except (ValueError, OSError) as error:
        print(f"epfabric-slots: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="epfabric-slots",
        description="Offers a node's proxy slots to Kubernetes: as devices of DRA "
        f"(driver {names.DRA_DRIVER}), or as the resource epfabric.io/slot of a device plugin.",
    )
    node = os.environ.get("NODE_NAME", "")
    text = "how they are offered"
    made.add_argument("--mode", choices=["dra", "device-plugin"], default="dra", help=text)
    made.add_argument("--node", default=node, metavar="NAME", help="this node (NODE_NAME)")
    for flag, default, text in (
        ("--kubelet-root", "/var/lib/kubelet", "the kubelet's --root-dir"),
        ("--state-dir", f"{names.STATE_DIR}/slots", "what was prepared; must outlive a restart"),
        ("--cdi-dir", "/var/run/cdi", "where the container runtime looks for CDI files"),
        ("--host-root", "/", "where the node's /sys and /proc are"),
    ):
        made.add_argument(
            flag, type=Path, default=Path(default), metavar="DIR", help=f"{text} ({default})"
        )
    made.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="how to reach the API server (the account)"
    )
    return made


def look(api: Api, machine: Machine, node: str) -> tuple[Rail, ...]:
    """The node's rails; none while it is in no fabric. Raises ApiError."""
    found = api.get(paths.node(node))
    if found is None:
        return ()
    try:
        spec = EPFabricNode.from_dict(found, strict=False).spec
    except MirrorError as error:
        _log.error("the EPFabricNode is not understood: %s", error)
        return ()
    nics = find_nics(machine)
    return rails_of(
        spec.fabric,
        nics,
        spec.nics.selector,
        find_cpus(machine),
        spec.proxies.per_gpu,
        pcie_roots(machine, nics),
    )


def serve_dra(api: Api, options: argparse.Namespace, stop: threading.Event) -> int:
    refused = threading.Event()

    def end_refused() -> None:
        refused.set()
        stop.set()

    def read(namespace: str, name: str) -> Object | None:
        base = f"/apis/resource.k8s.io/v1/namespaces/{quote(namespace, safe='')}"
        return api.get(f"{base}/resourceclaims/{quote(name, safe='')}")

    claims = Claims(options.state_dir, options.cdi_dir, options.node, boot_id(), read)
    service = DraService(claims)
    endpoint = options.kubelet_root / "plugins" / names.DRA_DRIVER / "dra.sock"
    registry = options.kubelet_root / f"plugins_registry/{names.DRA_DRIVER}-reg.sock"
    plugin = Plugin("DRAPlugin", names.DRA_DRIVER, endpoint, VERSIONS)
    add = dra_pb2_grpc.add_DRAPluginServicer_to_server
    servers = [
        listen(endpoint, lambda server: add(service, server)),
        register(registry, plugin, end_refused),
    ]
    slices, machine = Slices(api, options.node), Machine(options.host_root)
    while not stop.is_set():
        try:
            slices.keep(look(api, machine, options.node))
        except ApiError as error:
            _log.warning("the slots are not published: %s", error)
        stop.wait(LOOK_S)
    registry.unlink(missing_ok=True)
    for ended in [server.stop(STOP_S) for server in servers]:
        ended.wait(STOP_S)
    return 1 if refused.is_set() else 0


def serve_device_plugin(api: Api, options: argparse.Namespace, stop: threading.Event) -> int:
    service = PluginService()
    registrar = Registrar(options.kubelet_root / "device-plugins", service)
    machine = Machine(options.host_root)
    looks = 0
    while not stop.is_set():
        if looks % int(LOOK_S / KUBELET_LOOK_S) == 0:
            try:
                service.use(look(api, machine, options.node))
            except ApiError as error:
                _log.warning("the node's fabric is not known: %s", error)
        registrar.look()
        looks += 1
        stop.wait(KUBELET_LOOK_S)
    registrar.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
