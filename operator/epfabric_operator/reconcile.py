"""Brings the cluster to what a fabric's plan says and writes status; called by loop.py.

Level-triggered: every call reads, plans and acts anew, whatever event caused it, so that calls
may be repeated, merged or lost.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import TypeVar

from epfabric_crds import Condition, EPFabric, EPFabricNode, EPFabricStatus, names, to_dict
from epfabric_crds.meta import find, is_true, keep_transition

from epfabric_operator import paths
from epfabric_operator.conditions import Verdict, fabric_status, node_verdict
from epfabric_operator.events import EventWriter
from epfabric_operator.kube import METADATA, ApiError, Kube
from epfabric_operator.metrics import Metrics
from epfabric_operator.observe import Observer
from epfabric_operator.plan import Apply, Plan, PlanConfig, Relabel, plan, templates
from epfabric_operator.update import PENDING
from epfabric_operator.updatestatus import with_update
from epfabric_operator.world import World

log = logging.getLogger(__name__)
REFUSALS = frozenset({400, 403, 422})
WRITERS = 8  # requests at once; thousands of new nodes need several writes each
BATCH = 64
T = TypeVar("T")


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
        self._writers = ThreadPoolExecutor(WRITERS, "write")
        self._unreachable = False

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
        self._unreachable = False
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
        kept: set[str] = set()

        def relabel(change: Relabel) -> None:
            if not self._guard(partial(self._relabel, name, change), refusals, failures):
                kept.add(paths.epnode(change.node.name))

        self._each(relabel, wanted.relabel)
        versions = {ref.path: ref.version for ref in world.owned.get(name, ())}

        def write(apply: Apply) -> None:
            as_left = self._applied.get(apply.path) == (apply.body, versions.get(apply.path))
            if apply.path not in kept and not as_left:
                self._guard(partial(self._apply, apply), refusals, failures)

        self._each(write, wanted.apply)

    def _each(self, act: Callable[[T], None], items: Sequence[T]) -> None:
        """For all items, several at once. Raises Unfinished when the API server does not answer."""
        for first in range(0, len(items), BATCH):
            if self._unreachable:
                raise Unfinished(f"{len(items) - first} writes wait for the API server")
            batch = [self._writers.submit(act, item) for item in items[first : first + BATCH]]
            wait(batch)  # nothing is under way when one of them raises
            for done in batch:
                done.result()

    def _relabel(self, name: str, change: Relabel) -> None:
        log.info("fabric %s: node %s labels %s", name, change.node.name, dict(change.labels))
        # Only what was seen is changed: a node that was made anew is another one, and one that
        # changed since may belong to another fabric by now. What its kubelet wrote since may stay.
        node = self._observer.latest(change.node)
        seen = {"uid": node.uid, "resourceVersion": node.version}
        body = {"metadata": {**seen, "labels": dict(change.labels)}}
        made = self._kube.merge(paths.node(node.name), body, accept=METADATA)
        self._observer.wrote_node(made)

    def _apply(self, apply: Apply) -> None:
        made = self._kube.apply(apply.path, apply.body, names.OPERATOR_MANAGER)
        if apply.body["kind"] == "EPFabricNode":  # the planner compares those itself
            self._observer.wrote_epnode(made)
        else:
            self._applied[apply.path] = (apply.body, made["metadata"]["resourceVersion"])

    def _guard(self, act: Callable[[], object], refusals: list[str], failures: list[str]) -> bool:
        """Whether it was done."""
        try:
            act()
            return True
        except ApiError as error:
            self._unreachable |= error.status == 0
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
        verdicts, writes = {}, []
        for node in wanted.assignment.mine:
            epnode = world.epnodes.get(node.name)
            if epnode and paths.epnode(node.name) in gone:
                epnode = None
            verdicts[node.name] = node_verdict(epnode, world.lease_ages_s.get(node.name))
            if epnode:
                pending = wanted.update.pending.get(node.name)
                told = {"Ready": verdicts[node.name], PENDING: pending}
                if changed := _conditions(epnode, told, now):
                    writes.append((epnode, changed))
        self._each(self._write_node, writes)
        if any(v.status != "True" for v in verdicts.values()):
            world = replace(world, down=self._observer.down(fabric.metadata.name))
        of_all = fabric_status(fabric, wanted.assignment, world, verdicts, refusal, now)
        status = with_update(fabric, of_all, wanted.update, now)
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

    def _write_node(self, write: tuple[EPFabricNode, tuple[Condition, ...]]) -> None:
        epnode, conditions = write
        name = epnode.metadata.name
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "EPFabricNode",
            "metadata": {"name": name, "uid": epnode.metadata.uid},
            "status": {"conditions": to_dict(conditions)},
        }
        try:
            path = f"{paths.epnode(name)}/status"
            self._observer.wrote_epnode(self._kube.apply(path, body, names.OPERATOR_STATUS_MANAGER))
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


def _conditions(
    epnode: EPFabricNode, verdicts: Mapping[str, Verdict | None], now: str
) -> tuple[Condition, ...]:
    """The operator's conditions of a node where they change; one without a verdict goes."""
    old, generation = epnode.status.conditions, epnode.metadata.generation
    new = tuple(
        keep_transition(verdict.at(type_, now, generation), old)
        for type_, verdict in verdicts.items()
        if verdict
    )
    return () if new == tuple(c for type_ in verdicts if (c := find(old, type_))) else new


def names_to_visit(world: World) -> set[str]:
    """Every fabric that lives or has left something behind."""
    labels = (node.labels.get(names.FABRIC_LABEL) for node in world.nodes.values())
    return {
        *world.fabrics,
        *filter(None, labels),
        *(epnode.spec.fabric for epnode in world.epnodes.values()),
        *world.owned,
    }
