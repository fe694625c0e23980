"""Short ways to the stand-in kubelet under test and its pods; for the tests beside it."""

from __future__ import annotations

from harness.kubelet.api import Api, ApiError, Json
from harness.kubelet.kubelet import Kubelet
from harness.nodes import Nodes
from harness.process import wait_until

LABEL = "kubelet-test"
SPACE = "kubelet-test"
PODS = f"/api/v1/namespaces/{SPACE}/pods"
WAIT_S = 60.0


class Running:
    """The kubelet under test and short ways to its pods."""

    def __init__(self, api: Api, kubelet: Kubelet, nodes: Nodes) -> None:
        self.api = api
        self.kubelet = kubelet
        self.nodes = nodes

    def create(self, name: str, command: list[str], **spec: object) -> None:
        container: Json = {"name": "main", "image": "none", "command": command}
        container |= spec.pop("container", {})  # type: ignore[call-overload]
        self.api.post(
            PODS,
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "annotations": {"why": "a test"}},
                "spec": {"nodeSelector": {LABEL: "true"}, "containers": [container], **spec},
            },
        )

    def pod(self, name: str) -> Json:
        return self.api.get(f"{PODS}/{name}")

    def phase(self, name: str) -> str:
        return str(self.pod(name)["status"]["phase"])

    def await_phase(self, name: str, phase: str) -> Json:
        wait_until(lambda: self.phase(name) == phase, WAIT_S, f"{name} is {phase}")
        return self.pod(name)

    def log(self, name: str) -> str:
        return self.kubelet.logs(SPACE, name, "main")

    def await_log(self, name: str, text: str) -> None:
        wait_until(lambda: text in self.log(name), WAIT_S, f"{text!r} in the log of {name}")

    def pids(self, name: str) -> list[int]:
        return self.kubelet.pids(SPACE, name)

    def delete(self, name: str, **options: object) -> None:
        self.api.delete(f"{PODS}/{name}", {"kind": "DeleteOptions", "apiVersion": "v1", **options})

    def await_gone(self, name: str) -> None:
        wait_until(lambda: not exists(self.api, f"{PODS}/{name}"), WAIT_S, f"{name} is gone")


def exists(api: Api, path: str) -> bool:
    try:
        api.get(path)
    except ApiError as error:
        if error.code == 404:
            return False
        raise
    return True
