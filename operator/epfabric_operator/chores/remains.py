"""What EPFabric leaves in a cluster beside the chart, and how each goes; for leaving.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from epfabric_crds import names

from epfabric_operator import paths
from epfabric_operator.assignment import POOL_LABEL
from epfabric_operator.kube import METADATA_LIST, ApiError, Kube, Object

# Others' finalizers wait for something that this does not know; they are listed, not taken away.
FINALIZERS = ("epfabric.io/", "kopf.zalando.org/")
NODE_LABELS = (names.FABRIC_LABEL, POOL_LABEL, *names.FACT_LABELS)


@dataclass(frozen=True)
class Leftover:
    text: str
    remove: Callable[[], object]


def of_fabrics(kube: Kube, namespace: str) -> Iterator[Leftover]:
    """What a running operator removes by itself when the fabrics go, and groups."""
    for plural in (names.FABRICS, names.NODES, names.GROUPS):
        for one in _listed(kube, f"{paths.API}/{plural}"):
            yield _custom(kube, plural, one)
    for version in ("v1", "v1beta1"):
        for one in _listed(kube, paths.bindings(version)):
            if one["spec"].get("policyName") == names.INJECT_POLICY:
                path = f"{paths.bindings(version)}/{one['metadata']['name']}"
                yield Leftover(
                    f"policy binding {one['metadata']['name']}", partial(kube.delete, path)
                )
    for one in _listed(kube, paths.daemonsets(namespace), labelSelector=names.FABRIC_LABEL):
        path = f"{paths.daemonsets(namespace)}/{one['metadata']['name']}"
        yield Leftover(f"DaemonSet {one['metadata']['name']}", partial(kube.delete, path))
    yield from _labels(kube)


def authority(namespace: str, nodes_namespace: str) -> list[str]:
    """Paths of the agents' certificate authority; deleted unseen, since it holds a key."""
    return [
        f"{paths.secrets(namespace)}/{names.CA_SECRET}",
        f"{paths.configmaps(nodes_namespace)}/{names.CA_BUNDLE}",
    ]


def of_operator(kube: Kube, namespace: str, nodes_namespace: str) -> Iterator[Leftover]:
    """What the operator and agents made and nothing owns."""
    for leases in {paths.leases(namespace), paths.leases(nodes_namespace)}:
        for one in _listed(kube, leases):
            name = one["metadata"]["name"]
            if name == names.OPERATOR_LEASE or name.startswith(names.agent_lease("")):
                yield Leftover(f"Lease {name}", partial(kube.delete, f"{leases}/{name}"))
    for one in _listed(kube, paths.CSRS, fieldSelector=f"spec.signerName={names.SIGNER}"):
        name = one["metadata"]["name"]
        yield Leftover(f"certificate request {name}", partial(kube.delete, paths.csr(name)))


def _listed(kube: Kube, path: str, **query: str) -> Iterator[Object]:
    """Nothing where the cluster does not serve the kind (any more)."""
    try:
        yield from kube.each(path, query)
    except ApiError as error:
        if error.status != 404:
            raise


def _custom(kube: Kube, plural: str, one: Object) -> Leftover:
    metadata = one["metadata"]
    space = metadata.get("namespace")
    path = f"{paths.API}/namespaces/{space}/{plural}" if space else f"{paths.API}/{plural}"
    path += f"/{metadata['name']}"
    finalizers = metadata.get("finalizers") or []
    foreign = [f for f in finalizers if not f.startswith(FINALIZERS)]
    held = f" (held by the finalizer {', '.join(foreign)})" if foreign else ""

    def remove() -> None:
        kube.delete(path)
        if len(foreign) < len(finalizers):
            body = {"metadata": {"uid": metadata["uid"], "finalizers": foreign}}
            _unless_gone(partial(kube.merge, path, body))

    where = f"{space}/" if space else ""
    return Leftover(f"{plural} {where}{metadata['name']}{held}", remove)


def _labels(kube: Kube) -> Iterator[Leftover]:
    seen = set()
    for label in NODE_LABELS:
        query = {"labelSelector": label}
        for node in kube.each(paths.NODES, query, accept=METADATA_LIST):
            name = node["metadata"]["name"]
            if name not in seen:
                seen.add(name)
                body = {"metadata": {"labels": dict.fromkeys(NODE_LABELS)}}
                act = partial(_unless_gone, partial(kube.merge, paths.node(name), body))
                yield Leftover(f"labels of the node {name}", act)


def _unless_gone(act: Callable[[], object]) -> None:
    try:
        act()
    except ApiError as error:
        if error.status not in (404, 409, 422):  # gone, or another by now
            raise
