"""GPU memory that a real agent brokers, between processes that share no IPC namespace.

Needs the agent's packages (grpcio, protobuf, cryptography, pyyaml, pyroute2, OpenTelemetry) beside
torch. The agent is one of a manifest, with the loopback transport, and opens no GPU.
"""

from __future__ import annotations

import importlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="epfabric.Buffer works on torch's tensors")
for needed in ("yaml", "grpc", "cryptography", "pyroute2", "opentelemetry.sdk", "requests"):
    pytest.importorskip(needed, reason="the agent cannot run here")
importlib.import_module("opentelemetry.exporter.otlp.proto.http")

from gpu.brokered_rank import IDLE  # noqa: E402
from gpu.mps import Mps  # noqa: E402
from harness.process import HarnessError, Process, Processes, wait_until  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
RANK = Path(__file__).with_name("brokered_rank.py")
AGENT = (sys.executable, "-m", "epfabric_agent.main")
WAIT_S = 150.0
ABORT_S = 5.0
MANIFEST = """
apiVersion: epfabric.io/v1alpha1
kind: EPFabric
metadata: {name: moe}
spec:
  namespaceSelector: {}
  transport: {type: loopback}
  proxies: {perGPU: 1, idle: adaptive}
  barrier: {joinTimeout: 1m}
---
apiVersion: epfabric.io/v1alpha1
kind: EPFabricPeers
groups: [moe]
peers:
- {node: a, endpoint: "127.0.0.1:7470"}
"""


class Node:
    """One agent; ranks reach it at `socket`."""

    def __init__(self, processes: Processes, spec: str) -> None:
        self.processes = processes
        folder = processes.folder
        self.socket = folder / "state" / "sockets" / "moe" / "agent.sock"
        manifest, pki = folder / "fabric.yaml", folder / "pki"
        manifest.write_text(MANIFEST.replace("spec:\n", f"spec:\n{spec}"))
        issue = ["issue", str(pki), "--node=a", "--fabric=moe", "--address=127.0.0.1"]
        for command in (["init", str(pki)], issue):
            subprocess.run([*AGENT, "pki", *command], cwd=ROOT, check=True, timeout=60)
        options = [f"--manifest={manifest}", "--node=a", f"--pki={pki}"]
        options += [f"--state-dir={folder / 'state'}"]
        self.agent = processes.start("agent", [*AGENT, *options], cwd=ROOT)
        wait_until(self.socket.exists, WAIT_S, "the agent", self.agent)

    def run(
        self, world: int, *prefix: str, devices: list[int], visible: bool = True,
        end: str = "together", more: Mapping[str, str] | None = None,
    ) -> list[Any]:  # fmt: skip
        """What each rank says, by rank. visible: it sees every GPU, not its own alone; more: of
        the environment of all."""
        seed = secrets.randbits(24)
        print(f"seed {seed}")
        ranks: list[Process] = []
        for rank, device in enumerate(devices):
            environment = {**os.environ, "PYTHONFAULTHANDLER": "1", **(more or {})}
            if not visible:
                environment["CUDA_VISIBLE_DEVICES"] = str(device)
            numbers = (world, rank, device if visible else 0, seed)
            command = [
                *prefix,
                sys.executable,
                str(RANK),
                str(self.socket),
                *map(str, numbers),
                end,
            ]
            name = f"rank-{seed}-{rank}"
            ranks.append(self.processes.start(name, command, env=environment, cwd=ROOT))
        talking = ranks if end == "together" else ranks[:-1]
        with self.shown(ranks):
            if end == "masked":
                last = ranks[-1]
                wait_until(lambda: IDLE in last.tail(1), WAIT_S, "no work on the GPU", *ranks)
                last.signal(signal.SIGKILL)
                assert last.wait(WAIT_S) == -signal.SIGKILL
            self.await_ends(talking if end == "masked" else ranks)
        said = [json.loads(process.tail(1).splitlines()[-1]) for process in talking]
        print(*said, sep="\n")
        return said

    @staticmethod
    def await_ends(ranks: list[Process]) -> None:
        """Of all, with 0; or the first that ends otherwise."""

        def failed() -> bool:
            return any(process.code not in (None, 0) for process in ranks)

        def ended() -> bool:
            return all(process.ended.is_set() for process in ranks)

        wait_until(lambda: ended() or failed(), WAIT_S, "the ranks to end")
        assert not failed(), [process.code for process in ranks]

    @contextmanager
    def shown(self, ranks: list[Process]) -> Iterator[None]:
        """Of what fails inside: where the ranks wait, and the ends of all logs."""
        try:
            yield
        except (AssertionError, HarnessError):
            for process in ranks:
                process.signal(signal.SIGABRT)  # Python says where it was
            for process in ranks:
                process.ended.wait(ABORT_S)
            print(*(process.tail() for process in (*ranks, self.agent)), sep="\n")
            raise

    def holds_no_gpu(self) -> bool:
        """Neither a device nor the driver: descriptors of memory are gone with the exchange."""
        files = Path(f"/proc/{self.agent.pid}")
        links = [os.readlink(entry) for entry in (files / "fd").iterdir()]
        maps = (files / "maps").read_text()
        return not any("nvidia" in link for link in links) and "libcuda" not in maps


@contextmanager
def node(spec: str = "") -> Iterator[Node]:
    """spec: lines more of the fabric's."""
    with Processes("epfabric-brokered-") as processes:
        yield Node(processes, spec)


def devices(world: int) -> list[int]:
    count = torch.cuda.device_count()
    return [rank % count for rank in range(world)]


def unshared() -> tuple[str, ...]:
    """Starts a program in an IPC namespace of its own; skips where that is not permitted."""
    prefix = ("unshare", "--ipc", "--")
    done = subprocess.run(
        [*prefix, "true"], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        pytest.skip(f"no IPC namespace can be made here: {done.stderr.strip()}")
    return prefix


def check_works(said: list[Any]) -> None:
    for one in said:
        assert one["nvlink"] == "posix_fd", one
        assert one["works"], one
        assert "a buffer has the memory of" in one["after"]


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_of_one_namespace_reach_each_other_by_the_agent(world: int) -> None:
    with node() as one:
        check_works(one.run(world, devices=devices(world)))
        assert one.holds_no_gpu()


def test_seven_of_eight_processes_go_on_where_one_is_killed(mps: Mps) -> None:
    """As clients of MPS, which makes no promise to the others where a client is killed while it has
    work on the GPU: so it is killed when no rank has any."""
    more = mps.environment | {"CUDA_DEVICE_MAX_CONNECTIONS": "2"}  # of a process with one rank
    with node("  onRankLoss: Mask\n") as one:
        all_said = one.run(8, devices=[0] * 8, end="masked", more=more)
        check_works(all_said)
        for said in all_said:
            assert (said["masked"], said["session"]) == ([0] * 7 + [1], [7]), said
        assert one.holds_no_gpu()
    assert mps.servers()


def test_ranks_that_share_no_ipc_namespace_reach_each_other_by_the_agent() -> None:
    prefix = unshared()
    with node() as one:
        for _ in range(2):  # two epochs of one agent
            said = one.run(2, *prefix, devices=devices(2))
            check_works(said)
            assert len({rank["ipc"] for rank in said} | {os.readlink("/proc/self/ns/ipc")}) == 3
        assert one.holds_no_gpu()


def test_a_lost_rank_ends_what_the_others_wait_for_on_the_gpu() -> None:
    with node() as one:
        (said,) = one.run(2, devices=devices(2), end="lost")
        assert "the buffer has failed" in said["error"], said
        assert "rank 1" in said["error"], said
        assert "in vain" not in said["error"], said


def test_what_the_trial_says_is_what_a_buffer_finds_where_ranks_see_one_gpu_each() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with node() as one:
        for rank in one.run(2, devices=[0, 1], visible=False):
            assert rank["works"] == (rank["nvlink"] == "posix_fd"), rank
            assert rank["works"] or rank["error"], rank
