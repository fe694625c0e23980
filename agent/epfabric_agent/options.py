"""The command line of `epfabric-agent`; for main."""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epfabric_crds.names import NODES_NAMESPACE, POD_RESOURCES, STATE_DIR

from epfabric_agent.budget import RANKS_PER_NODE, REGIONS, WORLDS

DEFAULT_PORT = 7470
DAYS = 365
STOP_S = 20.0
MAX_STOP_S = 3600.0
MAX_DAYS = 100 * DAYS
_NODE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_FABRIC = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Options:
    """How an agent runs."""

    node: str
    fabric: str
    address: str
    port: int | None
    state_dir: Path
    manifest: Path | None
    pki: Path
    sockets: Path
    kubeconfig: Path | None
    namespace: str
    pod_resources: Path
    pod_uid: str = ""
    stop_s: float = STOP_S


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number < 65536:
        raise argparse.ArgumentTypeError(f"{text} is no port")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0.0 < number <= MAX_STOP_S:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0 and up to {MAX_STOP_S:g} s")
    return number


# Flag, type, the variable that gives the default, name of the value, help.
_FLAGS: tuple[tuple[str, Callable[[str], Any], str, str, str], ...] = (
    ("--node", str, "NODE_NAME", "NAME", "this node (NODE_NAME)"),
    ("--fabric", str, "EPFABRIC_FABRIC", "NAME", "the fabric of the node (a manifest names it)"),
    ("--address", str, "HOST_IP", "IP", "where agents reach this one (HOST_IP, or the manifest)"),
    ("--port", _port, "", "PORT", f"port for agents ({DEFAULT_PORT}, or the manifest's; 0: any)"),
    ("--state-dir", Path, "", "DIR", f"the node's folder, of one agent at a time ({STATE_DIR})"),
    ("--namespace", str, "POD_NAMESPACE", "NAME", f"the agents' namespace ({NODES_NAMESPACE})"),
    ("--pod-uid", str, "POD_UID", "UID", "the agent's own pod, for its status (POD_UID)"),
    ("--kubeconfig", Path, "", "FILE", "how to reach the API server (the pod's account)"),
    ("--pod-resources", Path, "", "FILE", f"which GPUs pods have: a socket ({POD_RESOURCES})"),
    ("--stop-s", _seconds, "", "S", f"seconds from a signal to the process's end ({STOP_S:g})"),
    ("--manifest", Path, "", "FILE", "EPFabric and EPFabricPeers: run without Kubernetes"),
    ("--pki", Path, "", "DIR", "with --manifest: ca.crt, NODE.crt, NODE.key (STATE-DIR/pki)"),
    ("--socket-dir", Path, "", "DIR", "with --manifest: ranks attach at DIR/GROUP/agent.sock"),
)


def _days(text: str) -> int:
    number = int(text)
    if not 0 < number <= MAX_DAYS:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to {MAX_DAYS} days")
    return number


def parser(environ: Mapping[str, str] = os.environ) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="epfabric-agent",
        description="EPFabric's agent of one node: by default in Kubernetes, as the operator runs "
        "it; with --manifest without Kubernetes.",
        epilog="Keys and certificates for a manifest: epfabric-agent pki --help; NICs as they were "
        "before: epfabric-agent nics --help; what large groups take: epfabric-agent budget --help",
    )
    for flag, kind, default, value, text in _FLAGS:
        made.add_argument(
            flag, type=kind, default=environ.get(default, "") or None, metavar=value, help=text
        )
    made.add_argument(
        "--log-level",
        default="info",
        choices=["debug", "info", "warning", "error"],
        help="how much is logged to stderr (info)",
    )
    return made


def options_of(parsed: argparse.Namespace) -> Options:
    """Raises ValueError for what is missing or does not fit."""
    if not parsed.node:
        raise ValueError("which node is this? give --node NAME (or set NODE_NAME)")
    _check_names(parsed.node, parsed.fabric, parsed.address)
    if parsed.manifest is None:
        if parsed.pki or parsed.socket_dir:
            raise ValueError("--pki and --socket-dir go with --manifest FILE")
        for flag, value in (("--fabric NAME", parsed.fabric), ("--address IP", parsed.address)):
            if not value:
                raise ValueError(f"give {flag}, or --manifest FILE to run without Kubernetes")
    elif parsed.kubeconfig:
        raise ValueError("--manifest runs without Kubernetes: leave --kubeconfig away")
    port = parsed.port
    if port is None and parsed.manifest is None:
        port = DEFAULT_PORT
    state_dir = parsed.state_dir or Path(STATE_DIR)
    return Options(
        node=parsed.node,
        fabric=parsed.fabric or "",
        address=parsed.address or "",
        port=port,
        state_dir=state_dir,
        manifest=parsed.manifest,
        pki=parsed.pki or state_dir / "pki",
        sockets=parsed.socket_dir or state_dir / "sockets",
        kubeconfig=parsed.kubeconfig,
        namespace=parsed.namespace or NODES_NAMESPACE,
        pod_resources=parsed.pod_resources or Path(POD_RESOURCES),
        pod_uid=parsed.pod_uid or "",
        stop_s=parsed.stop_s or STOP_S,
    )


def _check_names(node: str, fabric: str | None, address: str | None) -> None:
    """Names become file names and parts of certificates. Raises ValueError."""
    if not _NODE.fullmatch(node):
        raise ValueError(f"--node {node!r} is no node's name: lower-case letters, digits, - and .")
    if fabric and not _FABRIC.fullmatch(fabric):
        raise ValueError(f"--fabric {fabric!r} is no fabric's name: lower-case letters, digits, -")
    if address:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise ValueError(f"--address {address!r} is no IP address") from None


def check_issue(parsed: argparse.Namespace) -> None:
    """Checks what `pki issue` is given. Raises ValueError."""
    _check_names(parsed.node, parsed.fabric, parsed.address)
    for flag in ("fabric", "address"):
        if not getattr(parsed, flag):
            raise ValueError(f"--{flag} is empty")


def nics_parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="epfabric-agent nics",
        description="NIC settings that the agent of this node changed. Exit status: 0 done; "
        "1 something could not be restored (it says what and why); 2 wrong use, or an agent runs.",
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="restore")
    restore = commands.add_parser("restore", help="bring back the values from before the fabric")
    restore.add_argument(
        "--state-dir",
        type=Path,
        default=Path(STATE_DIR),
        metavar="DIR",
        help=f"the node's folder; its agent must have ended ({STATE_DIR})",
    )
    return made


def pki_parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="epfabric-agent pki",
        description="A certificate authority in a folder, for agents without Kubernetes.",
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="init | issue")
    init = commands.add_parser("init", help="make the authority: ca.crt and ca.key")
    init.add_argument("dir", type=Path, help="its folder; ca.key stays there, and secret")
    init.add_argument("--days", type=_days, default=10 * DAYS, help=f"its life ({10 * DAYS})")
    issue = commands.add_parser("issue", help="make a node's key and certificate")
    issue.add_argument("dir", type=Path, help="the authority's folder")
    issue.add_argument("--node", required=True, help="the node's name in the manifest")
    issue.add_argument("--fabric", required=True, help="metadata.name of the EPFabric")
    issue.add_argument("--address", required=True, help="the IP of its endpoint")
    issue.add_argument("--out", type=Path, help="where NODE.crt, NODE.key, ca.crt go (the folder)")
    issue.add_argument("--days", type=_days, default=DAYS, help=f"its life ({DAYS})")
    return made


def budget_parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="epfabric-agent budget",
        description="What groups take of an agent and its NICs, with a fabric's default settings, "
        "as a table. Exit status: 0; 2 wrong use, or a group that cannot be.",
    )
    made.add_argument("--ranks", type=int, nargs="+", default=WORLDS, help="of the groups")
    for flag, default, text in (
        ("--ranks-per-node", RANKS_PER_NODE, "ranks on each node"),
        ("--proxies", 4, "proxies of a rank (spec.proxies.perGPU)"),
        ("--nics-per-gpu", 1, "NICs over which links are striped (spec.highThroughput.nicsPerGPU)"),
        ("--regions", REGIONS, "regions that a rank registers"),
    ):
        made.add_argument(flag, type=int, default=default, metavar="N", help=f"{text} ({default})")
    made.add_argument(
        "--devices",
        nargs="*",
        metavar="NAME",
        help="say which of the groups fit these RDMA devices of this machine (none named: all), by "
        "the limits that they report, in place of the table",
    )
    return made
