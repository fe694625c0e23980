"""Which GPU a rank may say that it uses: asked of a kubelet's socket, which a real server holds."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from epfabric_agent.groups.local_rank import Refusal
from epfabric_agent.kube.pod_resources import Pace, PodResources
from epfabric_agent.kubelet_plugin import listen
from epfabric_agent.pods import Pod
from epfabric_agent.proto import podresources_pb2 as api
from epfabric_agent.proto import podresources_pb2_grpc
from epfabric_agent.session.gpus import Gpus, nobody, numa_of
from epfabric_agent.session.proxy_cpus import ProxyCpus
from epfabric_agent.topology.machine import Machine
from epfabric_crds.node import Gpu
from unit.agent.test_topology import NUMA, machine

FIRST, SECOND, THIRD = (f"GPU-{n}0000000-1111-2222-3333-444444444444" for n in "abc")
HERE = (Gpu(uuid=FIRST, numa_node=0), Gpu(uuid=SECOND, numa_node=1), Gpu(uuid=THIRD, numa_node=-1))
PATIENT = Pace(answer_s=60, kept_s=3600, pause_s=0, silent_s=3600)
CONTAINER = tuple[str, str]  # a resource, or DRA's driver, and a device


class Kubelet(podresources_pb2_grpc.PodResourcesListerServicer):
    """Its socket, as a real one serves it; `given`: by namespace and pod."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "kubelet.sock"
        self.given: dict[tuple[str, str], list[list[CONTAINER]]] = {}
        self.asked = 0
        self.busy = 0  # calls that are refused
        self.answers = threading.Event()  # it hangs while this is not set
        self.answers.set()

    def give(self, name: str, *containers: list[CONTAINER], namespace: str = "ns") -> Pod:
        self.given[namespace, name] = list(containers)
        return pod(name)

    def List(
        self, request: api.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> api.ListPodResourcesResponse:
        self.asked += 1
        if self.asked <= self.busy:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self.answers.wait(60)
        answer = api.ListPodResourcesResponse()
        for (namespace, name), containers in self.given.items():
            one = answer.pod_resources.add(namespace=namespace, name=name)
            for devices in containers:
                container = one.containers.add(name="c")
                for resource, device in devices:
                    if "/" in resource:
                        container.devices.add(resource_name=resource, device_ids=[device])
                    else:
                        claimed = container.dynamic_resources.add().claim_resources
                        claimed.add(driver_name=resource, pool_name="n", device_name=device)
        return answer


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    made = Kubelet(tmp_path)
    add = podresources_pb2_grpc.add_PodResourcesListerServicer_to_server
    server = listen(made.path, lambda server: add(made, server))
    yield made
    made.answers.set()
    server.stop(None)


def pod(name: str) -> Pod:
    return Pod(f"k-{name}", "ns", name, "g", None, Path("/nowhere"))


def gpus(kubelet: Path, pace: Pace = PATIENT) -> Gpus:
    return Gpus(PodResources(kubelet, pace), lambda: HERE)


async def refused(asked: Gpus, uuid: str, by: Pod) -> str:
    with pytest.raises(Refusal) as caught:
        await asked.named(uuid, by)
    assert caught.value.code == "gpu"
    return str(caught.value)


async def test_a_pod_says_a_gpu_of_its_own_and_no_other_pods(kubelet: Kubelet) -> None:
    one = kubelet.give("one", [("example.com/nic", "nic-7")], [("nvidia.com/gpu", SECOND)])
    kubelet.give("two", [("nvidia.com/gpu", FIRST)])
    kubelet.give("one", [("nvidia.com/gpu", THIRD)], namespace="other")
    asked = gpus(kubelet.path)
    assert numa_of(await asked.named(SECOND, one)) == 1
    assert (
        numa_of(await asked.named(SECOND.removeprefix("GPU-").replace("-", "").upper(), one)) == 1
    )
    for theirs in (FIRST, THIRD, "GPU-1", ""):
        said = await refused(asked, theirs, one)
        assert said == f"{theirs!r} is not among the GPUs that the kubelet gave ns/one: {SECOND}"
    assert numa_of(await asked.named(None, one)) is None


async def test_a_pod_that_was_given_no_gpu_says_none(kubelet: Kubelet) -> None:
    bare = kubelet.give("bare", [("example.com/nic", "nic-7"), ("slots.epfabric.io", "slot-0")])
    for one in (bare, pod("unknown")):
        said = await refused(gpus(kubelet.path), FIRST, one)
        assert said == f"the kubelet gave ns/{one.name} no GPU, so that it cannot use {FIRST!r}"


async def test_a_share_and_a_slice_of_a_gpu_are_the_pods_too(kubelet: Kubelet) -> None:
    slice_uuid = FIRST.replace("GPU-a", "MIG-d")
    one = kubelet.give(
        "one", [("nvidia.com/gpu.shared", f"{SECOND}::3"), ("nvidia.com/mig-1g.10gb", slice_uuid)]
    )
    asked = gpus(kubelet.path)
    assert numa_of(await asked.named(SECOND, one)) == 1
    assert numa_of(await asked.named(slice_uuid, one)) is None  # nobody says where it is
    assert numa_of(await asked.named(slice_uuid.replace("MIG-", "GPU-"), one)) is None
    await refused(asked, FIRST, one)


@pytest.mark.parametrize("given", [("nvidia.com/gpu", "0"), ("gpu.nvidia.com", "gpu-0")])
async def test_where_the_kubelet_names_gpus_otherwise_the_node_must_have_it(
    kubelet: Kubelet, given: CONTAINER
) -> None:
    one = kubelet.give("one", [given])
    asked = gpus(kubelet.path)
    assert numa_of(await asked.named(SECOND, one)) == 1
    assert numa_of(await asked.named(THIRD, one)) is None
    said = await refused(asked, "GPU-9", one)
    assert said == "this node has no GPU 'GPU-9' that its agent can see"


async def test_without_a_kubelet_the_machine_must_have_the_gpu(tmp_path: Path) -> None:
    for asked in (gpus(tmp_path / "kubelet.sock"), Gpus(nobody, lambda: HERE)):
        assert numa_of(await asked.named(SECOND, pod(""))) == 1
        assert "has no GPU 'GPU-9'" in await refused(asked, "GPU-9", pod(""))


async def test_a_kubelet_that_says_nothing_is_not_waited_for_without_end(tmp_path: Path) -> None:
    """It listens and takes no connection; and it has left its socket behind."""
    path = tmp_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        for _ in range(2):
            said = await refused(gpus(path, Pace(answer_s=0.5)), FIRST, pod("one"))
            assert "does not say which GPUs ns/one has" in said
            listener.close()


async def test_proxies_run_where_the_gpu_of_their_rank_is(tmp_path: Path) -> None:
    """Also where another NUMA node has more room."""
    here: Machine = machine(tmp_path, NUMA)
    cpus = ProxyCpus(here, list, lambda: None)
    await cpus.look()
    assert cpus.ledger.cpus_of(cpus.take(1, strict=False, numa=1)) == (4,)
    assert cpus.ledger.cpus_of(cpus.take(2, strict=False, numa=1)) == (5, 6)
    assert cpus.ledger.cpus_of(cpus.take(1, strict=False)) == (0,)
    assert cpus.ledger.local
