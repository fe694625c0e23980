"""A cluster for tests and the demo; `python -m harness.cluster` starts one for hands-on use."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from harness.audit import Audit
from harness.controlplane import ControlPlane, Place
from harness.kubectl import PROGRAM, kubectl
from harness.objects import Objects
from harness.process import HarnessError, Processes, private_mounts
from kubernetes import client, config


class Cluster:
    """A control plane in a folder of its own. `kubeconfig` and `client` are an administrator's."""

    def __init__(self, processes: Processes, place: Place | None = None) -> None:
        self.processes = processes
        self.control_plane = ControlPlane(processes, place)
        self._objects: dict[str, Objects] = {}

    def start(self, controllers: bool = True) -> None:
        """Without `controllers` there is neither controller manager nor scheduler."""
        self.control_plane.start(controllers)

    @property
    def folder(self) -> Path:
        return self.processes.folder

    @property
    def kubeconfig(self) -> Path:
        return self.control_plane.kubeconfig

    @property
    def audit(self) -> Audit:
        return self.control_plane.audit

    @property
    def url(self) -> str:
        return self.control_plane.url

    @property
    def client(self) -> client.ApiClient:
        made: client.ApiClient = config.new_client_from_config(str(self.kubeconfig))  # type: ignore[no-untyped-call]
        return made

    def objects(self, token: str = "") -> Objects:
        """What kubectl does with one object, in this process; with a token as whom it says."""
        if token not in self._objects:
            self._objects[token] = Objects(self.kubeconfig, token)
        return self._objects[token]

    def kubectl(self, *args: str, stdin: str | None = None, timeout_s: float = 120.0) -> str:
        """What kubectl printed; HarnessError with its complaint where it failed."""
        done = self.try_kubectl(*args, stdin=stdin, timeout_s=timeout_s)
        if done.returncode != 0:
            raise HarnessError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def try_kubectl(
        self, *args: str, stdin: str | None = None, timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        return kubectl(self.kubeconfig, *args, stdin=stdin, timeout_s=timeout_s)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        private_mounts()
        with Processes("epfabric-cluster-") as processes:
            cluster = Cluster(processes)
            print("starting etcd, API server, controller manager and scheduler", flush=True)
            cluster.start()
            print(f"kubeconfig  {cluster.kubeconfig}")
            print(f"logs        {cluster.folder / 'logs'}")
            print(f"try         {PROGRAM} --kubeconfig={cluster.kubeconfig} get namespaces")
            print("Ctrl-C ends it", flush=True)
            signal.pause()
    except HarnessError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
