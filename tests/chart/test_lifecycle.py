"""The chart's life with all its hooks: install, upgrade, rollback, test, and how it leaves."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chart import variants
from chart.conftest import RELEASE, wait_for_accounts
from chart.objects import NODES, SYSTEM, As, Object, Refused, namespace
from chart.site import FABRIC, NODE_LABEL, TEAM, Site, made_site
from chart.test_install import inventory
from epfabric_crds import definitions
from harness import helm
from harness.cluster import Cluster
from harness.kubelet.kubelet import Kubelet
from harness.nodes import Nodes
from harness.process import HarnessError, wait_until
from harness.rights import granted, refused, unused

pytestmark = pytest.mark.timeout(900)  # each action may take its bound
GONE_S = 60.0
CRDS = [definitions.definition(kind)["metadata"]["name"] for kind in definitions.FILES]
IMAGES = {name: [name] for name in ("epfabric-operator", "epfabric-agent")}
# The release's namespace is the administrator's.
KEPT = {
    f"Namespace /{SYSTEM}",
    f"ServiceAccount {SYSTEM}/default",
    f"ConfigMap {SYSTEM}/kube-root-ca.crt",
}
RESTRICTED = {"pod-security.kubernetes.io__enforce": "restricted"}


@pytest.fixture(scope="module")
def site(admin: As, cluster: Cluster) -> Iterator[Site]:
    nodes = Nodes(cluster.kubeconfig, 2, labels={NODE_LABEL: "true"}, prefix="chart-life")
    kubelet = Kubelet(cluster.kubeconfig, cluster.folder / "chart-life", nodes.addresses, IMAGES)
    nodes.start()
    kubelet.start()
    try:
        admin.create(namespace(TEAM, team="life", **RESTRICTED))
        if not admin.run("get", "namespace", SYSTEM, "--ignore-not-found"):
            admin.create(namespace(SYSTEM, **RESTRICTED))
        wait_for_accounts(admin, [TEAM, SYSTEM])
        yield made_site(admin, kubelet)
    finally:
        kubelet.stop()
        nodes.stop()
        nodes.delete()
        admin.run("delete", "namespace", TEAM, "--timeout=60s")


@pytest.fixture
def empty(site: Site) -> Iterator[Site]:
    """Without definitions before; with nothing of ours after, whatever a test left."""
    site.admin.run("delete", "crd", *CRDS, "--ignore-not-found", "--timeout=60s")
    yield site
    pods = ("pods", "--all", "--force", "--grace-period=0", "--timeout=60s")
    site.admin.run("delete", *pods, "-n", TEAM)
    try:
        helm.uninstall(site.admin.cluster.kubeconfig, RELEASE, SYSTEM)
    except HarnessError as error:
        if "not found" not in str(error):
            raise
    site.admin.run("delete", "jobs", "--all", "-n", SYSTEM, "--timeout=60s")


def check(site: Site) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("epfabric-operator")
    kubeconfig = f"--kubeconfig={site.admin.cluster.kubeconfig}"
    command = [str(program), "check", "--timeout-seconds=2", kubeconfig]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_it_is_installed_tested_upgraded_and_rolled_back(empty: Site) -> None:
    admin, name = empty.admin, CRDS[0]
    empty.install()
    shipped = admin.get("crd", name)
    assert {c["type"]: c["status"] for c in shipped["status"]["conditions"]}[
        "Established"
    ] == "True"
    assert empty.names("jobs", "-n", SYSTEM) == [], "the hook's Job goes when it has succeeded"
    assert "epfabric-crds" not in " ".join(empty.names("clusterroles"))
    empty.await_rollout()
    empty.make_fabric()
    helm.check(admin.cluster.kubeconfig, RELEASE, SYSTEM)
    log = empty.kubelet.logs(SYSTEM, "epfabric-check", "epfabric-check")
    assert log.count("ok    ") == 8

    older = admin.get("crd", name)
    schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    schema["properties"].pop("onRankLoss")
    admin.replace(older)
    empty.upgrade(operator={"replicas": 2})
    assert admin.get("crd", name)["spec"] == shipped["spec"]
    assert admin.get("deployment", "epfabric-operator", SYSTEM)["spec"]["replicas"] == 2

    empty.rollback(1)
    assert admin.get("deployment", "epfabric-operator", SYSTEM)["spec"]["replicas"] == 1
    assert admin.get("crd", name)["spec"] == shipped["spec"]
    assert admin.get("epfabric", FABRIC)["spec"]["onRankLoss"] == "Fail"

    admin.run("delete", "validatingadmissionpolicybinding", "epfabric-guard")
    told = ""

    def refused() -> bool:
        nonlocal told
        done = check(empty)
        told = done.stdout + done.stderr
        return done.returncode == 1

    wait_until(refused, GONE_S, "the check fails without epfabric-guard")
    assert "FAIL  a wrong annotation is refused" in told
    assert "epfabric-guard is not in force" in told
    assert "ok    fabrics are Ready" in told


def with_an_older_version(crd: Object) -> Object:
    older = {**crd["spec"]["versions"][0], "name": "v1alpha0", "storage": False}
    crd["spec"]["versions"].append(older)
    return crd


def test_an_upgrade_that_would_drop_a_stored_version_is_refused(empty: Site) -> None:
    admin, name = empty.admin, CRDS[2]
    empty.install(operator={"replicas": 0})
    stored = admin.replace(with_an_older_version(admin.get("crd", name)))
    stored["status"]["storedVersions"] = ["v1alpha0", "v1alpha1"]
    admin.replace(stored, subresource="status")
    others = admin.get("crd", CRDS[0])
    others["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "older"
    admin.replace(others)
    with pytest.raises(HarnessError, match="epfabric-crds"):
        empty.upgrade(operator={"replicas": 1})
    log = empty.job_log("epfabric-crds")
    assert f"{name}: objects may be stored as v1alpha0" in log
    assert "has only v1alpha1" in log
    assert "status.storedVersions; then try again" in log
    kept = [version["name"] for version in admin.get("crd", name)["spec"]["versions"]]
    assert kept == ["v1alpha1", "v1alpha0"]
    untouched = admin.get("crd", CRDS[0])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert untouched["description"] == "older", "all are applied, or none"
    assert admin.get("deployment", "epfabric-operator", SYSTEM)["spec"]["replicas"] == 0


def test_it_leaves_only_when_no_pod_needs_it_or_when_forced(empty: Site) -> None:
    admin = empty.admin
    before = inventory(admin)
    empty.install()
    empty.await_rollout()
    empty.make_fabric()
    empty.make_pods(running=2, pending=10)
    with pytest.raises(HarnessError, match="epfabric-uninstall"):
        empty.uninstall()
    log = empty.job_log("epfabric-uninstall")
    assert "12 pods still use a fabric" in log
    assert all(f"  {TEAM}/user-{number:02}\n" in log for number in range(10))
    assert f"{TEAM}/user-10" not in log
    assert "  and 2 more" in log
    assert "--set uninstall.force=true" in log
    assert len(empty.names("nodes", "-l", f"epfabric.io/fabric={FABRIC}")) == 2
    assert len(empty.phases()) == 12
    admin.run("wait", "--for=condition=Ready", f"epfabric/{FABRIC}", "--timeout=1s")

    assert "  helm rollback epfabric 1 -n epfabric-system\n" in log
    empty.rollback(1)
    empty.upgrade(uninstall={"force": True})
    empty.uninstall()
    assert empty.names("pods", "-n", TEAM) == []
    assert empty.names("nodes", "-l", "epfabric.io/fabric") == []
    kept = {f"CustomResourceDefinition /{name}" for name in CRDS}
    kept.add("APIService /v1alpha1.epfabric.io")  # the API server's own, of the definitions
    await_equal(lambda: left(admin, before), kept)


def await_equal(look: Callable[[], set[str]], wanted: set[str]) -> None:
    end = time.monotonic() + GONE_S
    while (found := look()) != wanted:
        assert time.monotonic() < end, f"{found ^ wanted} after {GONE_S:.0f} s"
        time.sleep(0.5)


def left(admin: As, before: set[str]) -> set[str]:
    """But what every namespace has, and the namespace of the agents, which stays."""
    every = {f"Namespace /{NODES}"}
    every |= {f"ServiceAccount {NODES}/default", f"ConfigMap {NODES}/kube-root-ca.crt"}
    return inventory(admin) - before - KEPT - every


def test_without_an_operator_it_leaves_nothing_at_all(empty: Site) -> None:
    """Labels, finalizers of ours, a group, and what has no owner any more; nobody takes them."""
    admin = empty.admin
    before = inventory(admin)
    empty.install()
    empty.await_rollout()
    empty.make_fabric()
    empty.upgrade(operator={"replicas": 0}, crds={"keep": False})
    admin.run("wait", "pods", "-n", SYSTEM, "--all", "--for=delete", f"--timeout={GONE_S:.0f}s")
    admin.run("delete", "epfabric", FABRIC, "--cascade=orphan", "--timeout=60s")
    held: Object = {"finalizers": ["epfabric.io/cleanup"]}
    admin.patch("epfabricnode", "chart-life-0", {"metadata": held})
    ours, leases = "epfabric.io/v1alpha1", "coordination.k8s.io/v1"
    for version, kind, metadata, spec in (
        (ours, "EPFabric", held, {"nodeSelector": {"no": "node"}, "namespaceSelector": {}}),
        (ours, "EPGroup", {"namespace": TEAM, **held}, {"fabric": FABRIC, "worldSize": 2}),
        (leases, "Lease", {"namespace": NODES}, {"holderIdentity": "nobody"}),
    ):
        named = {"name": "epfabric-agent-gone", **metadata}
        admin.create({"apiVersion": version, "kind": kind, "metadata": named, "spec": spec})
    admin.patch("node", "chart-life-0", {"metadata": {"labels": {"epfabric.io/pool": "p"}}})
    empty.uninstall()
    assert empty.names("nodes", "-l", "epfabric.io/fabric") == []
    assert empty.names("nodes", "-l", "epfabric.io/pool") == []
    assert empty.names("crd", *CRDS) == []
    assert empty.names("namespace", NODES) == [], "gone, not going: the next one needs the name"
    assert len(empty.names("nodes", "-l", f"{NODE_LABEL}=true")) == 2

    await_equal(lambda: inventory(admin) - before - KEPT, set())


def test_a_finalizer_of_another_is_not_taken_and_the_wait_for_it_ends(empty: Site) -> None:
    admin = empty.admin
    empty.install(operator={"replicas": 0}, uninstall={"timeoutSeconds": 10})
    admin.create(
        {
            "apiVersion": "epfabric.io/v1alpha1",
            "kind": "EPFabric",
            "metadata": {"name": FABRIC, "finalizers": ["example.com/audit"]},
            "spec": {"nodeSelector": {"no": "node"}, "namespaceSelector": {}},
        }
    )
    with pytest.raises(HarnessError, match="epfabric-uninstall"):
        empty.uninstall()
    log = empty.job_log("epfabric-uninstall")
    assert f"still there after 10 s: epfabrics {FABRIC} (held by the finalizer" in log
    assert "example.com/audit" in log
    admin.patch("epfabric", FABRIC, {"metadata": {"finalizers": None}})
    empty.uninstall()


def test_the_account_of_the_check_can_create_no_pod(empty: Site) -> None:
    """Its rights would be everything, but for one policy."""
    admin = empty.admin
    empty.install(operator={"replicas": 0})
    user = f"--as=system:serviceaccount:{SYSTEM}:epfabric-check"
    admin.run(
        "create", "clusterrolebinding", "chart-life", "--clusterrole=cluster-admin",
        f"--serviceaccount={SYSTEM}:epfabric-check",
    )  # fmt: skip
    try:
        run = ("run", "x", "--image=x", "-n", "default", user)

        def refused() -> bool:
            try:
                admin.run(*run)
            except Refused as refusal:
                return "dry runs only" in str(refusal)
            admin.delete("pod", "x", "default")
            return False

        wait_until(refused, GONE_S, "the policy is in force")
        admin.run(*run, "--dry-run=server")
    finally:
        admin.run("delete", "clusterrolebinding", "chart-life")


def test_hooks_check_and_driver_use_all_their_rights_and_nobody_lacks_one(
    request: pytest.FixtureRequest, site: Site
) -> None:
    """By all that the tests above made happen; the others' are in contract/test_used_rights.py."""
    of_this_file = {
        getattr(item, "originalname", item.name)
        for item in request.session.items
        if item.path == request.path
    }
    if missing := set(TESTS) - of_this_file:
        pytest.skip(f"looks at what the whole file did; not chosen: {', '.join(sorted(missing))}")
    (files,) = variants.render({"uninstall": {"force": True}, "crds": {"keep": False}})
    rights = granted(variants.objects(files))
    uses = site.admin.cluster.audit.uses(site.begun)
    assert refused(rights, uses) == set()
    busy = (f"{SYSTEM}:epfabric-operator", f"{NODES}:epfabric-agent")
    assert unused([r for r in rights if r.account not in busy], uses, {}) == (set(), set())


TESTS = [name for name in globals() if name.startswith("test_")]
