"""What must exist for one fabric, and what must go; pure, called by reconcile.py.

Everything that can be owned is owned by the EPFabric, so that garbage collection removes it even
when no operator runs. Labels on nodes cannot be owned: `plan` for a fabric that is gone takes
them away (docs/decisions/001-deletion.md).
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epfabric_crds import EPFabric, EPFabricNode, EPFabricNodeSpec, Settings, names, to_dict

from epfabric_operator import paths
from epfabric_operator.assignment import POOL_LABEL, Assignment, assign, pool_of
from epfabric_operator.daemonset import PRIORITY_CLASS, PULL_POLICY, daemonsets, template_of
from epfabric_operator.facts import fact_labels
from epfabric_operator.update import Update, cordon_of, decide, pools_wait, running
from epfabric_operator.world import NodeMeta, Ref, World

MANAGED_BY = "app.kubernetes.io/managed-by"


@dataclass(frozen=True)
class PlanConfig:
    agent_image: str
    namespace: str
    agent_port: int
    policies: str | None  # version in which the API server has MutatingAdmissionPolicyBindings
    agent_priority_class: str = PRIORITY_CLASS
    agent_pull_policy: str = PULL_POLICY
    kubelet_root: str = names.KUBELET_ROOT


@dataclass(frozen=True)
class Relabel:
    """Labels to set on a node; None takes a label away."""

    node: NodeMeta
    labels: Mapping[str, str | None]


@dataclass(frozen=True)
class Apply:
    path: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    assignment: Assignment
    update: Update
    delete: tuple[Ref, ...]  # before anything is applied
    relabel: tuple[Relabel, ...]
    apply: tuple[Apply, ...]


def plan(name: str, world: World, config: PlanConfig, now: datetime.datetime) -> Plan:
    """The plan for the fabric `name`; for one that is gone, a plan that leaves nothing of it."""
    assignment = assign(name, world)
    fabric = world.live(name)
    update = decide(fabric, assignment.mine, world, now) if fabric else Update()
    objects = _objects(fabric, assignment, config) if fabric else ()
    keep = {apply.path for apply in objects}
    stale = tuple(ref for ref in world.owned.get(name, ()) if ref.path not in keep)
    if (held := _held(stale, assignment, world, config)) and fabric:
        # The agents of a DaemonSet go with it, and with them the groups that they serve.
        stale = tuple(ref for ref in stale if ref not in held)
        update = pools_wait(update, running(assignment.mine, world))
    nodes, gone = _epnodes(name, fabric, assignment, update, world)
    return Plan(
        assignment=assignment,
        update=update,
        delete=(*stale, *gone),
        relabel=_relabels(name, fabric, assignment, world),
        apply=(*objects, *nodes),
    )


def templates(fabric: EPFabric, config: PlanConfig) -> dict[str, str]:
    """The template that the pods of each of its DaemonSets should have, by the DaemonSet's path."""
    made = _daemonsets(fabric, config)
    base = paths.daemonsets(config.namespace)
    return {f"{base}/{body['metadata']['name']}": template_of(body) for body in made}


def settings_of(fabric: EPFabric) -> dict[str, Any]:
    """What every node of the fabric is told alike, as keyword arguments of EPFabricNodeSpec."""
    told = {f.name: getattr(fabric.spec, f.name) for f in dataclasses.fields(Settings)}
    return told | {"tenants": tuple(tenant.limits for tenant in fabric.spec.tenants)}


def metadata(fabric: EPFabric, name: str, namespace: str | None = None) -> dict[str, Any]:
    """Metadata of an object that goes when the fabric goes."""
    out: dict[str, Any] = {
        "name": name,
        "labels": {names.FABRIC_LABEL: fabric.metadata.name, MANAGED_BY: names.OPERATOR_MANAGER},
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": "EPFabric",
                "name": fabric.metadata.name,
                "uid": fabric.metadata.uid,
                "controller": True,
            }
        ],
    }
    if namespace:
        out["namespace"] = namespace
    return out


def _daemonsets(fabric: EPFabric, config: PlanConfig) -> list[dict[str, Any]]:
    return daemonsets(
        fabric,
        config.agent_image,
        config.agent_port,
        config.namespace,
        config.agent_priority_class,
        config.agent_pull_policy,
        config.kubelet_root,
    )


def _objects(fabric: EPFabric, assignment: Assignment, config: PlanConfig) -> tuple[Apply, ...]:
    out = [_binding(fabric, config.policies)] if config.policies else []
    namespace = config.namespace
    for body in _daemonsets(fabric, config):
        body["metadata"] = metadata(fabric, body["metadata"]["name"], namespace)
        out.append(Apply(f"{paths.daemonsets(namespace)}/{body['metadata']['name']}", body))
    return tuple(out)


def _binding(fabric: EPFabric, version: str) -> Apply:
    binding = names.policy_binding(fabric.metadata.name)
    return Apply(
        f"{paths.bindings(version)}/{binding}",
        {
            "apiVersion": f"admissionregistration.k8s.io/{version}",
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": metadata(fabric, binding),
            "spec": {
                "policyName": names.INJECT_POLICY,
                # The parameter is the fabric itself; while it is missing the policy does nothing.
                "paramRef": {"name": fabric.metadata.name, "parameterNotFoundAction": "Allow"},
                "matchResources": {"namespaceSelector": to_dict(fabric.spec.namespace_selector)},
            },
        },
    )


def _epnodes(
    name: str, fabric: EPFabric | None, assignment: Assignment, update: Update, world: World
) -> tuple[list[Apply], list[Ref]]:
    wanted = {node.name: node for node in assignment.mine} if fabric else {}
    applies, deletes = [], []
    for node_name, epnode in sorted(world.epnodes.items()):
        node = wanted.get(node_name)
        foreign = epnode.spec.fabric != name
        if node is None and foreign:
            continue
        if node is None or foreign or epnode.spec.node_uid != node.uid:
            deletes.append(Ref(paths.epnode(node_name), epnode.metadata.uid))
    gone = {ref.path for ref in deletes}
    settings = settings_of(fabric) if fabric else {}
    for node_name, node in wanted.items():
        assert fabric is not None
        cordon = cordon_of(node, update)
        spec = EPFabricNodeSpec(fabric=name, node_uid=node.uid, cordon=cordon, **settings)
        before = world.epnodes.get(node_name)
        if before and paths.epnode(node_name) not in gone and _equal(before, spec, fabric):
            continue
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "EPFabricNode",
            "metadata": metadata(fabric, node_name),
            "spec": to_dict(spec),
        }
        applies.append(Apply(paths.epnode(node_name), body))
    return applies, deletes


def _equal(before: EPFabricNode, spec: EPFabricNodeSpec, fabric: EPFabric) -> bool:
    owners = {reference.get("uid") for reference in before.metadata.owner_references}
    label = before.metadata.labels.get(names.FABRIC_LABEL)
    return before.spec == spec and fabric.metadata.uid in owners and label == spec.fabric


def _held(
    stale: tuple[Ref, ...], assignment: Assignment, world: World, config: PlanConfig
) -> tuple[Ref, ...]:
    """DaemonSets that spec.agent.pools has no more, while groups run on the fabric's nodes."""
    base = paths.daemonsets(config.namespace)
    found = tuple(ref for ref in stale if ref.path.startswith(base))
    return found if found and running(assignment.mine, world) else ()


def _relabels(
    name: str, fabric: EPFabric | None, assignment: Assignment, world: World
) -> tuple[Relabel, ...]:
    nothing = {names.FABRIC_LABEL: None, POOL_LABEL: None, **fact_labels(None)}
    out = [Relabel(n, _changed(n, nothing)) for n in assignment.release]
    for node in assignment.mine if fabric else ():
        assert fabric is not None
        mine = {names.FABRIC_LABEL: name, POOL_LABEL: pool_of(fabric, node)}
        if POOL_LABEL in node.labels and running((node,), world):
            del mine[POOL_LABEL]  # another pool's DaemonSet would take the agent away
        changed = _changed(node, {**mine, **fact_labels(world.epnodes.get(node.name))})
        if changed:
            out.append(Relabel(node, changed))
    return tuple(out)


def _changed(node: NodeMeta, labels: dict[str, str | None]) -> dict[str, str | None]:
    return {k: v for k, v in labels.items() if node.labels.get(k) != v}
