"""One real node: containerd and a kubelet in namespaces of its own; for `harness.node.site`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from harness import build, cgroups
from harness.node import pause, settings
from harness.node.wires import Wires
from harness.process import HarnessError, Process, Processes, wait_until

INIT = Path(__file__).with_name("init.py")
START_S = 60.0
IMPORT_S = 300.0
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Node:
    """Started, it serves its API server until `processes` end; its disk outlives its reboots."""

    def __init__(
        self,
        processes: Processes,
        wires: Wires,
        index: int,
        name: str,
        authority: Path,
        labels: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.address = wires.plan.node(index)
        self.index = index
        self.cgroup = f"/{processes.folder.name}/{name}"
        self.folder = processes.folder / name
        self._processes = processes
        self._wires = wires
        self._labels = tuple(labels)
        self._programs = build.programs("containerd") | build.programs("kubelet")
        self._init: Process | None = None
        self._containerd: Process | None = None
        self._kubelet: Process | None = None
        self._pid = 0
        (self.folder / "networks").mkdir(parents=True)
        plugins = next(iter(build.programs("cni").values())).parent
        container = self.folder / "container.json"
        containerd = settings.containerd(plugins, self.networks, pause.NAME, container)
        self._write("containerd.toml", containerd)
        plain = json.loads(output([self._programs["ctr"], "oci", "spec"]))
        self._write(container.name, json.dumps(settings.container(plain, self.boot_id)))
        pods = settings.network(wires.plan.pods(index))
        self._write("networks/pods.conflist", json.dumps(pods))
        kubelet = settings.kubelet(self.cgroup, self.address, authority)
        self._write("kubelet.yaml", yaml.safe_dump(kubelet))

    @property
    def networks(self) -> Path:
        return self.folder / "networks"

    @property
    def boot_id(self) -> Path:
        """The file that the node and its containers see in place of the kernel's."""
        return self.folder / "boot-id"

    @property
    def root(self) -> Path:
        """The node's file system, as this machine sees it."""
        return Path(f"/proc/{self._pid}/root")

    @property
    def disk(self) -> Path:
        """What outlives a reboot."""
        return self.folder / "disk"

    def introduce(self, kubeconfig: Mapping[str, object]) -> None:
        """Tells the kubelet its API server, before the first start."""
        self._write("kubeconfig", yaml.safe_dump(dict(kubeconfig)))

    def start(self) -> None:
        """Boots; returns when the kubelet runs. containerd has the images of the disk."""
        self.boot()
        self.start_containerd()
        self.start_kubelet()

    def import_images(self, archives: Sequence[Path]) -> None:
        """Puts images on the disk, and leaves the node without power."""
        self.boot()
        self.start_containerd()
        for archive in archives:
            self.import_image(archive)
        assert self._containerd is not None
        self._containerd.stop()
        self.power_off()

    def boot(self) -> None:
        """A machine with its file systems and network, and nothing that runs on it."""
        cgroups.make(self.cgroup)
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        self.boot_id.write_text(f"{uuid.uuid4()}\n")
        spaces = ["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        self._init = self._processes.start(
            self.name,
            [
                *("unshare", *spaces, "--mount-proc", "--"),
                *(sys.executable, "-ES", INIT, f"--name={self.name}"),
                *(f"--disk={self.disk}", f"--boot-id={self.boot_id}", f"--ready={ready}"),
            ],
        )
        wait_until(ready.exists, START_S, f"{self.name} booted", self._init)
        outer = self._init.pid
        children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
        self._pid = int(children[0])
        self._wires.connect(self.index, self._pid)

    def power_off(self) -> None:
        """All that runs on the node ends at once; memory and mounts are lost."""
        assert self._init is not None
        os.kill(self._pid, signal.SIGKILL)
        for process in (self._init, self._containerd, self._kubelet):
            if process is not None:
                process.wait(START_S)
        cgroups.remove(self.cgroup)

    def start_containerd(self) -> None:
        program = self._programs["containerd"]
        path = f"{program.parent}:{SYSTEM_PATH}"  # where the shim is
        self._containerd = self.begin(
            "containerd",
            [program, f"--config={self.folder / 'containerd.toml'}"],
            {"PATH": path},
        )
        socket = self.root / settings.CONTAINERD_SOCKET.lstrip("/")
        what = f"containerd of {self.name}"
        wait_until(socket.exists, START_S, what, self._containerd)
        wait_until(lambda: self.try_ctr("version").returncode == 0, START_S, what, self._containerd)

    def stop_containerd(self) -> None:
        """As a crash; containers and their shims live on."""
        assert self._containerd is not None
        self._containerd.signal(signal.SIGKILL)
        self._containerd.wait(START_S)

    def start_kubelet(self) -> None:
        labels = [f"--node-labels={','.join(self._labels)}"] if self._labels else []
        self._kubelet = self.begin(
            "kubelet",
            [
                self._programs["kubelet"],
                f"--config={self.folder / 'kubelet.yaml'}",
                f"--kubeconfig={self.folder / 'kubeconfig'}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
                *labels,
            ],
        )

    def stop_kubelet(self) -> None:
        """As a crash; pods live on."""
        assert self._kubelet is not None
        self._kubelet.signal(signal.SIGKILL)
        self._kubelet.wait(START_S)

    def kill_shim(self, pod_uid: str) -> None:
        """Kills what containerd keeps beside the pod's containers; containerd then ends them."""
        shim = parent_of(self.pids(pod_uid)[0])
        if not program_of(shim).startswith("containerd-shim"):
            raise HarnessError(f"no shim, but {program_of(shim)}, started a container")
        os.kill(shim, signal.SIGKILL)

    def import_image(self, archive: Path) -> None:
        done = self.try_ctr("--namespace=k8s.io", "images", "import", str(archive))
        if done.returncode != 0:
            raise HarnessError(f"{self.name} cannot import {archive}: {done.stderr.strip()}")

    def try_ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(self._programs["ctr"], *arguments)

    def run(self, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        """A program on the node, as its root."""
        return subprocess.run(
            [*self.enter(), *argv], capture_output=True, text=True, timeout=IMPORT_S, check=False
        )

    def is_running(self, pid: int) -> bool:
        """Whether a process that `pids` gave is still there."""
        return any(pid in pids for pids in cgroups.pids(self.cgroup).values())

    def pids(self, pod_uid: str) -> list[int]:
        """The pod's processes, as this machine numbers them, without the sandbox's."""
        found = []
        for folder, pids in cgroups.pids(self.cgroup).items():
            if f"pod{pod_uid}" in str(folder):
                found += [pid for pid in pids if program_of(pid) not in ("pause", "")]
        return found

    def begin(
        self, name: str, argv: Sequence[str | Path], more: Mapping[str, str] | None = None
    ) -> Process:
        """A program that runs on the node, as its root, until it or the node ends.

        more: variables of its environment.
        """
        environment = {"PATH": SYSTEM_PATH, "HOME": "/root", **(more or {})}
        return self._processes.start(
            f"{name}-{self.name}", [*self.enter(), *argv], env=environment, cwd=Path("/")
        )

    def enter(self, *spaces: str) -> list[str]:
        """What begins the command line of a program that is to run on the node.

        spaces: only these of the node's namespaces, such as "net".
        """
        chosen = [f"--{space}" for space in spaces or ("mount", "net", "uts", "ipc", "pid")]
        return ["nsenter", f"--target={self._pid}", *chosen, "--"]

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)


def output(argv: Sequence[str | Path]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def parent_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("PPid:")))


def program_of(pid: int) -> str:
    """The name of its program; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
