"""Which GPU a rank may name, on a real kubelet: one that this gave the rank's pod."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness.node.node import Node

from .fabric import Fabric, Json, eventually
from .gpu_plugin import RESOURCE

pytestmark = pytest.mark.timeout(300)

TESTS = Path(__file__).resolve().parents[1]
UUIDS = [f"GPU-{n}0000000-1111-2222-3333-444444444444" for n in "ab"]
# Each of the GPUs, and what the agent says to it.
ASKS = f"""
import epfabric, json, os, signal
print(json.dumps({{"event": "has", "gpu": os.environ.get("GPU", "")}}), flush=True)
for gpu in {UUIDS}:
    why = ""
    try:
        epfabric.connect(gpu=gpu, timeout_s=60).close()
    except epfabric.SessionError as error:
        why = f"{{error.code}}: {{error}}"
    print(json.dumps({{"event": "asked", "gpu": gpu, "why": why}}), flush=True)
print(json.dumps({{"event": "over"}}), flush=True)
signal.sigwait({{signal.SIGTERM}})
"""


@contextmanager
def gpus_on(fabric: Fabric, node: Node) -> Iterator[None]:
    command = [sys.executable, "-m", "node.gpu_plugin", *UUIDS]
    plugin = node.begin("gpus", command, {"PYTHONPATH": str(TESTS)})
    path = f"/api/v1/nodes/{node.name}"
    try:
        eventually(
            lambda: fabric.api.get(path)["status"]["allocatable"].get(RESOURCE) == "2",
            "the kubelet offers GPUs",
        )
        yield
    finally:
        plugin.stop()


def answers(fabric: Fabric, one: Json) -> tuple[str, dict[str, str]]:
    """The GPU that the pod has, and what came of naming each."""
    eventually(lambda: any(e["event"] == "over" for e in fabric.events(one)), "it has asked")
    events = fabric.events(one)
    (has,) = [event["gpu"] for event in events if event["event"] == "has"]
    return has, {event["gpu"]: event["why"] for event in events if event["event"] == "asked"}


def test_a_rank_may_name_the_gpu_of_its_pod_and_no_other(fabric: Fabric) -> None:
    node = fabric.nodes[0]
    command = ["python3", "-c", ASKS]
    with gpus_on(fabric, node):
        limits: Json = {"resources": {"limits": {RESOURCE: "1"}}}
        one = fabric.create("with-gpu", node, command=command, container=limits)
        bare = fabric.create("without-gpu", node, command=command)
        has, said = answers(fabric, one)
        (other,) = [uuid for uuid in UUIDS if uuid != has]
        assert said == {
            has: "",
            other: f"gpu: {other!r} is not among the GPUs that the kubelet gave live/with-gpu: "
            f"{has}",
        }
        has, said = answers(fabric, bare)
        assert has == ""
        for uuid in UUIDS:
            why = f"gpu: the kubelet gave live/without-gpu no GPU, so that it cannot use {uuid!r}"
            assert said[uuid] == why
        assert fabric.clear() == []
