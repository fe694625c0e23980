"""Every image starts and does its work, as its own user, on a read-only root."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from harness import csi_client
from harness.images import container
from harness.images.container import Container, Unpacked
from harness.process import Process, Processes, wait_until

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 90.0
KUBECONFIG = """\
clusters: [{name: none, cluster: {server: "https://127.0.0.1:1", insecure-skip-tls-verify: true}}]
users: [{name: none, user: {token: none}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
current-context: none
"""
AGENT_CAPABILITIES = ("CAP_IPC_LOCK",)  # all that the operator gives an agent for tcp


def finished(
    processes: Processes, image: Unpacked, wanted: Container, name: str = "main"
) -> tuple[int, str]:
    process = container.start(processes, processes.folder, image, wanted, name)
    return process.wait(WAIT_S), process.log.read_text()


@pytest.mark.parametrize("target", ["operator", "agent", "csi"])
def test_program_of_the_image_tells_its_use(
    target: str, roots: dict[str, Unpacked], processes: Processes
) -> None:
    code, said = finished(processes, roots[target], Container(args=["--help"]))
    assert code == 0, said
    assert f"usage: epfabric-{target}" in said


@pytest.mark.parametrize(
    ("target", "user"), [("operator", "65532"), ("client", "65532"), ("agent", "0"), ("csi", "0")]
)
def test_who_runs_in_the_image(
    target: str, user: str, roots: dict[str, Unpacked], processes: Processes
) -> None:
    """Sockets in folders of pods and mounts on the node need root; nothing else does."""
    code, said = finished(processes, roots[target], Container(command=["id", "-u"]))
    assert (code, said.strip()) == (0, user)


@pytest.mark.parametrize("target", ["operator", "agent", "csi", "client"])
def test_image_holds_no_compiler_and_no_installer(target: str, roots: dict[str, Unpacked]) -> None:
    tree = roots[target].root
    found = [
        str(path.relative_to(tree))
        for pattern in ("*bin/gcc*", "*bin/g++*", "*bin/cc", "*bin/pip*", "*bin/uv", "*bin/cmake")
        for folder in ("usr", "opt/epfabric", "usr/local")
        for path in (tree / folder).glob(pattern)
    ]
    found += [str(p) for p in tree.glob("usr/lib/python3*/**/ensurepip")]
    found += [str(p) for p in tree.glob("opt/**/site-packages/pip")]
    assert found == []


def test_images_hold_only_their_own_part(roots: dict[str, Unpacked]) -> None:
    held = {target: packages(image) for target, image in roots.items()}
    assert not {"epfabric_agent", "epfabric", "numpy", "grpc"} & held["operator"]
    assert not {"epfabric_operator", "kopf"} & held["agent"]
    assert not {"epfabric_agent", "epfabric_crds", "kubernetes", "grpc"} & held["client"]
    assert not {"epfabric", "epfabric_crds", "kubernetes", "numpy", "kopf"} & held["csi"]
    native = [p.name for p in roots["csi"].root.glob("opt/epfabric/**/epfabric_agent/**/*.so")]
    assert native == []


def packages(image: Unpacked) -> set[str]:
    (site,) = image.root.glob("opt/epfabric/lib/python3.*/site-packages")
    return {path.name for path in site.iterdir() if path.is_dir()}


def test_agent_has_libfabric_and_finds_no_nic_without_complaint(
    roots: dict[str, Unpacked], processes: Processes
) -> None:
    code = (
        "import pyverbs.device, epfabric_agent._native\n"
        "from epfabric_agent.topology.rdma import openable_devices\n"
        "print('devices', openable_devices())"
    )
    status, said = finished(processes, roots["agent"], Container(command=["python", "-c", code]))
    assert (status, said.strip()) == (0, "devices ()")


def test_csi_driver_of_the_image_answers_as_a_kubelet_expects(
    roots: dict[str, Unpacked], processes: Processes
) -> None:
    """An unknown volume is unpublished with success: a pod that never got one can end."""
    folder = processes.folder
    (folder / "kubelet/pods").mkdir(parents=True)
    (folder / "kubeconfig").write_text(KUBECONFIG)
    options = ["--endpoint=unix:///node/csi.sock", "--registration-socket=/node/reg.sock"]
    options += ["--state-dir=/node/state", "--kubelet-root=/node/kubelet"]
    wanted = Container(
        args=[*options, "--kubeconfig=/node/kubeconfig", "--node=a"], binds={folder: "/node"}
    )
    driver = container.start(processes, folder, roots["csi"], wanted, "csi")
    wait_until((folder / "reg.sock").exists, WAIT_S, "the driver's sockets", driver)
    name, _ = csi_client.register(folder / "reg.sock")
    assert name == "csi.epfabric.io"
    pod = "/node/kubelet/pods/2f1c7f1e-6f0f-4f0a-9c52-5d2b3a4c5d6e"
    target = f"{pod}/volumes/kubernetes.io~csi/epfabric/mount"
    csi_client.unpublish(folder / "csi.sock", "csi-unknown", target)
    assert not driver.ended.is_set()


def test_client_imports_the_library_with_its_native_producer(
    roots: dict[str, Unpacked], processes: Processes
) -> None:
    code = "import epfabric, epfabric_host; print(epfabric_host.__name__)"
    status, said = finished(processes, roots["client"], Container(command=["python3", "-c", code]))
    assert (status, said.strip()) == (0, "epfabric_host")


def test_two_agents_of_the_image_move_what_ranks_of_the_client_image_send(
    roots: dict[str, Unpacked], processes: Processes
) -> None:
    """Two nodes' agents over libfabric's tcp, four ranks in pods' clothes, every byte checked."""
    folder = processes.folder
    with container.network() as network:
        two = TwoAgents(processes, roots["agent"], network)
        two.start()
        ranks = [
            container.start(
                processes,
                folder,
                roots["client"],
                Container(
                    command=["python3", "/opt/epfabric/examples/moe_rank.py"],
                    args=["--socket=/run/epfabric/agent.sock", f"--rank={rank}", "--world-size=4"],
                    binds={folder / "ab"[rank // 2] / "sockets/moe": "/run/epfabric"},
                    network=network,
                ),
                f"rank-{rank}",
            )
            for rank in range(4)
        ]
        codes = [rank.wait(WAIT_S) for rank in ranks]
        assert codes == [0, 0, 0, 0], "\n".join(p.tail() for p in [*ranks, *two.agents.values()])
        results = [json.loads(rank.log.read_text().splitlines()[-1]) for rank in ranks]
    assert all(result["bytes_verified"] > 0 for result in results)


class TwoAgents:
    """The agents of examples/two-agents, each in a container with its node's folder."""

    def __init__(self, processes: Processes, image: Unpacked, network: Path) -> None:
        self.processes, self.image, self.network = processes, image, network
        self.folder = processes.folder
        self.agents: dict[str, Process] = {}
        text = (ROOT / "examples" / "two-agents" / "fabric.yaml").read_text()
        self.endpoints = {
            peer["node"]: peer["endpoint"].partition(":")[0]
            for peer in list(yaml.safe_load_all(text))[1]["peers"]
        }
        (self.folder / "fabric.yaml").write_text(text)

    def start(self) -> None:
        self.pki("init")
        for node, address in self.endpoints.items():
            self.pki("issue", f"--node={node}", "--fabric=moe", f"--address={address}")
        for node in self.endpoints:
            (self.folder / node).mkdir()
            args = ["--manifest=/node/fabric.yaml", "--pki=/node/pki", f"--node={node}"]
            self.agents[node] = self.container([*args, f"--state-dir=/node/{node}"], node)
        for node, agent in self.agents.items():
            socket = self.folder / node / "sockets/moe/agent.sock"
            wait_until(socket.exists, WAIT_S, f"agent {node}", agent)

    def pki(self, step: str, *options: str) -> None:
        done = self.container(
            ["pki", step, "/node/pki", *options],
            f"pki-{step}-{len(options)}{''.join(options)[7:8]}",
        )
        assert done.wait(WAIT_S) == 0, done.tail()

    def container(self, args: list[str], name: str) -> Process:
        wanted = Container(
            args=args,
            binds={self.folder: "/node"},
            capabilities=AGENT_CAPABILITIES,
            network=self.network,
        )
        return container.start(self.processes, self.folder, self.image, wanted, name)
