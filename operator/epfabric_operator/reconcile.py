"""Brings the cluster to what a fabric's plan says and writes status; called by loop.py.

Level-triggered: every call reads, plans and acts anew, whatever event caused it, so that calls
may be repeated, merged or lost.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from epfabric_crds import EPFabric, EPFabricNode, EPFabricStatus, names, to_dict
from epfabric_crds.meta import find, is_true, keep_transition

from epfabric_operator import paths
from epfabric_operator.conditions import Verdict, fabric_status, node_verdict
from epfabric_operator.events import EventWriter
from epfabric_operator.kube import ApiError, Kube
from epfabric_operator.metrics import Metrics
from epfabric_operator.observe import Observer
from epfabric_operator.plan import Apply, Plan, PlanConfig, plan, templates
from epfabric_operator.update import PENDING
from epfabric_operator.updatestatus import with_update
from epfabric_operator.world import World

log = logging.getLogger(__name__)
REFUSALS = frozenset({400, 403, 422})


class Unfinished(Exception):
    """Something could not be done now and is worth another try."""


class Reconciler:
    def __init__(
        self,
        kube: Kube,
        observer: Observer,
        config: PlanConfig,
        events: EventWriter,
        metrics: Metrics,
    ) -> None:
        self._kube = kube
        self._observer = observer
        self._config = config
        self._events = events
        self._metrics = metrics
        # What was applied last, and the resourceVersion that it had then, by path.
        self._applied: dict[str, tuple[object, str]] = {}

    def observe(self) -> World:
        return self._observer.world()

    def reconcile(self, name: str, world: World) -> None:
        """Bring one fabric, living or gone, to its plan. Raises Unfinished."""
        if name in world.unreadable:
            return
        fabric = world.live(name)
        if fabric:
            agents = self._observer.agents(name, templates(fabric, self._config))
            if agents.pods:
                world = replace(world, agents=agents, down=self._observer.down(name))
        now = datetime.datetime.now(datetime.UTC)
        wanted = plan(name, world, self._config, now)
        refusals: list[str] = []
        failures: list[str] = []
        self._act(name, wanted, world, refusals, failures)
        if fabric:
            refusal = "; ".join(refusals) or None
            self._guard(
                partial(self._write_status, fabric, wanted, world, refusal, now),
                refusals,
                failures,
            )
        # After the status, so that what is told of a node's wait is there before its end.
        for pod in wanted.update.replace:
            log.info("fabric %s: replacing agent %s of node %s", name, pod.name, pod.node)
            self._guard(partial(self._kube.delete, pod.path, pod.uid), refusals, failures)
        if failures:
            raise Unfinished("; ".join(failures[:3]))

    def _act(
        self, name: str, wanted: Plan, world: World, refusals: list[str], failures: list[str]
    ) -> None:
        for ref in wanted.delete:
            log.info("fabric %s: deleting %s", name, ref.path)
            self._guard(partial(self._kube.delete, ref.path, ref.uid), refusals, failures)
        kept = set()
        for change in wanted.relabel:
            log.info("fabric %s: node %s labels %s", name, change.node.name, dict(change.labels))
            # Only what was seen is changed: a node that was made anew is another one, and one that
            # changed since may belong to another fabric by now.
            node = change.node
            seen = {"uid": node.uid, "resourceVersion": node.version}
            body = {"metadata": {**seen, "labels": dict(change.labels)}}
            relabel = partial(self._kube.merge, paths.node(node.name), body)
            if not self._guard(relabel, refusals, failures):
                kept.add(paths.epnode(node.name))
        versions = {ref.path: ref.version for ref in world.owned.get(name, ())}
        for apply in wanted.apply:
            as_left = self._applied.get(apply.path) == (apply.body, versions.get(apply.path))
            if apply.path not in kept and not as_left:
                self._guard(partial(self._apply, apply), refusals, failures)

    def _apply(self, apply: Apply) -> None:
        made = self._kube.apply(apply.path, apply.body, names.OPERATOR_MANAGER)
        if apply.body["kind"] != "EPFabricNode":  # the planner compares those itself
            self._applied[apply.path] = (apply.body, made["metadata"]["resourceVersion"])

    def _guard(self, act: Callable[[], object], refusals: list[str], failures: list[str]) -> bool:
        """Whether it was done."""
        try:
            act()
            return True
        except ApiError as error:
            if error.status != 404:  # gone in the meantime; the event of that brings us back
                log.warning("%s", error)
                (refusals if error.status in REFUSALS else failures).append(str(error))
            return False

    def _write_status(
        self,
        fabric: EPFabric,
        wanted: Plan,
        world: World,
        refusal: str | None,
        moment: datetime.datetime,
    ) -> None:
        now = moment.isoformat(timespec="seconds").replace("+00:00", "Z")
        gone = {ref.path for ref in wanted.delete}
        verdicts = {}
        for node in wanted.assignment.mine:
            epnode = world.epnodes.get(node.name)
            if epnode and paths.epnode(node.name) in gone:
                epnode = None
            verdicts[node.name] = node_verdict(epnode, world.lease_ages_s.get(node.name))
            if epnode:
                pending = wanted.update.pending.get(node.name)
                self._write_node(epnode, {"Ready": verdicts[node.name], PENDING: pending}, now)
        if any(v.status != "True" for v in verdicts.values()):
            world = replace(world, down=self._observer.down(fabric.metadata.name))
        told = fabric_status(fabric, wanted.assignment, world, verdicts, refusal, now)
        status = with_update(fabric, told, wanted.update, now)
        ready = is_true(status.conditions, "Ready")
        self._metrics.fabric(fabric.metadata.name, ready, status.nodes)
        if to_dict(status) == to_dict(fabric.status):
            return
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "EPFabric",
            "metadata": {"name": fabric.metadata.name, "uid": fabric.metadata.uid},
            "status": to_dict(status),
        }
        path = f"{paths.fabric(fabric.metadata.name)}/status"
        self._kube.apply(path, body, names.OPERATOR_STATUS_MANAGER)
        self._tell(fabric, status)

    def _write_node(
        self, epnode: EPFabricNode, verdicts: Mapping[str, Verdict | None], now: str
    ) -> None:
        """The operator's conditions of a node; one without a verdict goes."""
        name, old = epnode.metadata.name, epnode.status.conditions
        generation = epnode.metadata.generation
        new = [
            keep_transition(verdict.at(type_, now, generation), old)
            for type_, verdict in verdicts.items()
            if verdict
        ]
        if new == [c for type_ in verdicts if (c := find(old, type_))]:
            return
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "EPFabricNode",
            "metadata": {"name": name, "uid": epnode.metadata.uid},
            "status": {"conditions": to_dict(tuple(new))},
        }
        try:
            path = f"{paths.epnode(name)}/status"
            self._kube.apply(path, body, names.OPERATOR_STATUS_MANAGER)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    def _tell(self, fabric: EPFabric, status: EPFabricStatus) -> None:
        about = {
            "apiVersion": names.API_VERSION,
            "kind": "EPFabric",
            "metadata": {"name": fabric.metadata.name, "uid": fabric.metadata.uid},
        }
        for type_ in ("PolicyOverlap", "Stalled", "Degraded"):
            found = find(status.conditions, type_)
            if found and found.status == "True" and not is_true(fabric.status.conditions, type_):
                self._events.warn(about, found.reason, "Reconcile", found.message)


def names_to_visit(world: World) -> set[str]:
    """Every fabric that lives or has left something behind."""
    labels = (node.labels.get(names.FABRIC_LABEL) for node in world.nodes.values())
    return {
        *world.fabrics,
        *filter(None, labels),
        *(epnode.spec.fabric for epnode in world.epnodes.values()),
        *world.owned,
    }
