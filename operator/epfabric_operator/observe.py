"""Reads the cluster into a World, which the planner takes; called by reconcile.py."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping

from epfabric_crds import EPFabric, MirrorError, names

from epfabric_operator import paths
from epfabric_operator.agentpods import read_agents
from epfabric_operator.epnodes import EPNodeCache
from epfabric_operator.kube import METADATA_LIST, TABLE, Kube, Object
from epfabric_operator.leaseage import LeaseAges
from epfabric_operator.nodes import NodeCache
from epfabric_operator.plan import MANAGED_BY
from epfabric_operator.world import Agents, NodeMeta, Ref, World

log = logging.getLogger(__name__)


class Observer:
    def __init__(
        self,
        kube: Kube,
        namespace: str,
        policies: str | None,
        nodes: NodeCache,
        epnodes: EPNodeCache,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._nodes = nodes
        self._epnodes = epnodes
        self._ages = LeaseAges()
        self._owned = [paths.daemonsets(namespace)]
        if policies:
            self._owned.append(paths.bindings(policies))

    def world(self) -> World:
        """Raises ApiError: a list that could not be read must never look like an empty one."""
        fabrics: dict[str, EPFabric] = {}
        unreadable = set()
        for item in self._kube.pages(paths.FABRICS)[0]:
            item |= {"apiVersion": names.API_VERSION, "kind": "EPFabric"}
            try:
                fabrics[item["metadata"]["name"]] = EPFabric.from_dict(item, strict=False)
            except MirrorError as error:
                unreadable.add(item["metadata"]["name"])
                log.error("epfabric/%s is left alone: %s", item["metadata"]["name"], error)
        return World(
            fabrics=fabrics,
            unreadable=frozenset(unreadable),
            nodes=self._nodes.snapshot(),
            epnodes=self._epnodes.snapshot(),
            lease_ages_s=self._ages.update(self._kube.each(paths.leases(self._namespace))),
            owned=self._owned_objects(),
        )

    def latest(self, seen: NodeMeta) -> NodeMeta:
        """The node as it is now, if it differs from `seen` in nothing but its version."""
        return self._nodes.latest(seen)

    def wrote_node(self, item: Object) -> None:
        """The metadata that a write of ours was answered with."""
        self._nodes.wrote(item)

    def wrote_epnode(self, item: Object) -> None:
        self._epnodes.wrote(item)

    def down(self, fabric: str) -> frozenset[str]:
        """The fabric's nodes that are not ready, from the columns that `kubectl get` prints."""
        query = {"labelSelector": f"{names.FABRIC_LABEL}={fabric}", "includeObject": "None"}
        rows, _ = self._kube.pages(paths.NODES, query, accept=TABLE, key="rows")
        return frozenset(r["cells"][0] for r in rows if not str(r["cells"][1]).startswith("Ready"))

    def agents(self, fabric: str, templates: Mapping[str, str]) -> Agents:
        """The fabric's agents' pods, while some are outdated. Raises ApiError."""
        return read_agents(self._kube, self._namespace, fabric, templates)

    def _owned_objects(self) -> dict[str, tuple[Ref, ...]]:
        found: dict[str, list[Ref]] = defaultdict(list)
        query = {"labelSelector": f"{MANAGED_BY}={names.OPERATOR_MANAGER}"}
        for path in self._owned:
            for item in self._kube.each(path, query, accept=METADATA_LIST):
                meta = item["metadata"]
                fabric = (meta.get("labels") or {}).get(names.FABRIC_LABEL)
                if fabric and not meta.get("deletionTimestamp"):
                    ref = Ref(f"{path}/{meta['name']}", meta["uid"], meta["resourceVersion"])
                    found[fabric].append(ref)
        return {fabric: tuple(refs) for fabric, refs in found.items()}
