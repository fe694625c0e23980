"""Reads a manifest: an EPFabric and the peers' addresses, as two YAML documents of one file.

apiVersion: epfabric.io/v1alpha1
kind: EPFabricPeers
peers:
- {node: a, endpoint: "192.0.2.1:7470"}
- {node: b, endpoint: "192.0.2.2:7470"}
groups: [training]          # default: one group named like the fabric
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from epfabric_crds import EPFabric, MirrorError, Settings
from epfabric_crds.definitions import problems
from epfabric_crds.names import API_VERSION

from epfabric_agent.peers.client import Agent

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NODE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
PEERS_FIELDS = {"apiVersion", "kind", "metadata", "peers", "groups"}


class ManifestError(ValueError):
    """A manifest that cannot be used; the message names the place and what to write."""


@dataclass(frozen=True)
class Manifest:
    fabric: str
    settings: Settings
    peers: tuple[Agent, ...]
    groups: tuple[str, ...]

    def peer(self, node: str) -> Agent:
        for found in self.peers:
            if found.node == node:
                return found
        known = ", ".join(peer.node for peer in self.peers)
        raise ManifestError(f"no peer is named {node!r}; the manifest has {known}")


def read(path: Path) -> Manifest:
    """Raises ManifestError."""
    try:
        documents = [d for d in yaml.safe_load_all(path.read_text()) if d is not None]
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ManifestError(f"{path} is no YAML: {error}") from error
    try:
        return parse(documents)
    except ManifestError as error:
        raise ManifestError(f"{path}: {error}") from error


def parse(documents: list[Any]) -> Manifest:
    fabric = _fabric(_only(documents, "EPFabric"))
    peers = _only(documents, "EPFabricPeers")
    if unknown := sorted(set(peers) - PEERS_FIELDS, key=str):
        raise ManifestError(f"EPFabricPeers has no field {unknown[0]!r}")
    groups = peers.get("groups") or [fabric.metadata.name]
    if not isinstance(groups, list) or not all(_is(_LABEL, g) for g in groups):
        raise ManifestError("groups must be a list of names such as [training]")
    return Manifest(fabric.metadata.name, fabric.spec, _agents(peers), tuple(dict.fromkeys(groups)))


def _only(documents: list[Any], kind: str) -> dict[str, Any]:
    found = [d for d in documents if isinstance(d, dict) and d.get("kind") == kind]
    if len(found) != 1:
        raise ManifestError(f"there must be one document of kind {kind}, not {len(found)}")
    if found[0].get("apiVersion") != API_VERSION:
        raise ManifestError(f"{kind}: apiVersion must be {API_VERSION}")
    return found[0]


def _fabric(document: dict[str, Any]) -> EPFabric:
    if wrong := problems("EPFabric", document):
        raise ManifestError("EPFabric: " + "; ".join(wrong[:5]))
    try:
        return EPFabric.from_dict(document)
    except MirrorError as error:
        raise ManifestError(f"EPFabric: {error}") from error


def _agents(document: dict[str, Any]) -> tuple[Agent, ...]:
    listed = document.get("peers")
    if not isinstance(listed, list) or not listed:
        raise ManifestError("EPFabricPeers: peers must list at least this node")
    agents = []
    for index, item in enumerate(listed):
        where = f"peers[{index}]"
        if not isinstance(item, dict) or set(item) != {"node", "endpoint"}:
            raise ManifestError(f'{where} must be {{node: NAME, endpoint: "IP:PORT"}}')
        if not _is(_NODE, item["node"]):
            raise ManifestError(f"{where}.node is no lower-case name: {item['node']!r}")
        split_endpoint(item["endpoint"], f"{where}.endpoint")
        agents.append(Agent(item["node"], item["endpoint"]))
    if len({agent.node for agent in agents}) != len(agents):
        raise ManifestError("peers: a node stands there twice")
    return tuple(agents)


def split_endpoint(endpoint: Any, where: str) -> tuple[str, int]:
    """IP and port of `192.0.2.1:7470` or `[2001:db8::1]:7470`. Raises ManifestError."""
    host, colon, port = str(endpoint).rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port)
        if not colon or not 0 < number < 65536:
            raise ValueError("no port")
    except ValueError:
        raise ManifestError(f"{where} is {endpoint!r}; write an IP address and a port") from None
    return str(address), number


def _is(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
