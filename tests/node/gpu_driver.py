"""A stand-in for a GPU's DRA driver, for test_slots: a node runs it as `python -m node.gpu_driver`.

The kubelet registers it and calls it as any other driver, and takes away its slice whenever it
starts. Its GPUs are names; a container that uses one sees it in the variable GPU. Each call is a
line of the file that `--calls` names.
"""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path

import grpc
from epfabric_agent.kubelet_plugin import Plugin, listen, register
from epfabric_agent.proto import dra_pb2, dra_pb2_grpc
from harness.kubelet.api import Api, ApiError, Json

DRIVER = "gpu.test"
KUBELET = Path("/var/lib/kubelet")
CDI = Path("/var/run/cdi")
LOOK_S = 0.5
ALREADY_THERE = 409
ROOT = "resource.kubernetes.io/pcieRoot"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}"


class Gpus(dra_pb2_grpc.DRAPluginServicer):
    def __init__(self, api: Api, calls: Path) -> None:
        self._api = api
        self._calls = calls

    def NodePrepareResources(
        self, request: dra_pb2.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_pb2.NodePrepareResourcesResponse:
        answer = dra_pb2.NodePrepareResourcesResponse()
        for claim in request.claims:
            self._say("prepare", claim)
            found = self._api.get(CLAIMS.format(claim.namespace, claim.name))
            results = found["status"]["allocation"]["devices"]["results"]
            (mine,) = [result for result in results if result["driver"] == DRIVER]
            device = answer.claims[claim.uid].devices.add()
            device.request_names.append(mine["request"])
            device.pool_name, device.device_name = mine["pool"], mine["device"]
            device.cdi_device_ids.append(f"test/gpu={claim.uid}")
            edits = {"env": [f"GPU={mine['device']}"]}
            made = {"cdiVersion": "0.5.0", "kind": "test/gpu"}
            devices = [{"name": claim.uid, "containerEdits": edits}]
            CDI.mkdir(parents=True, exist_ok=True)
            path = CDI / f"test-{claim.uid}.json"
            path.with_suffix(".new").write_text(json.dumps({**made, "devices": devices}))
            path.with_suffix(".new").rename(path)
        return answer

    def NodeUnprepareResources(
        self, request: dra_pb2.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        answer = dra_pb2.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            self._say("unprepare", claim)
            (CDI / f"test-{claim.uid}.json").unlink(missing_ok=True)
            answer.claims[claim.uid].error = ""
        return answer

    def _say(self, call: str, claim: dra_pb2.Claim) -> None:
        with self._calls.open("a") as file:
            file.write(f"{call} {claim.uid}\n")


def slice_of(node: str, roots: list[str]) -> Json:
    devices = [
        {"name": f"gpu-{number}", "attributes": {ROOT: {"string": root}}}
        for number, root in enumerate(roots)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-gpus"},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices},
    }


def publish(api: Api, body: Json) -> None:
    try:
        api.post(SLICES, body)
    except ApiError as error:
        if error.code != ALREADY_THERE:
            print(error, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--calls", type=Path, required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--root", action="append", required=True, help="PCIe root of each GPU")
    options = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    api = Api(options.kubeconfig)
    endpoint = KUBELET / f"plugins/{DRIVER}/dra.sock"
    plugin = Plugin("DRAPlugin", DRIVER, endpoint, ("v1.DRAPlugin",))
    add = dra_pb2_grpc.add_DRAPluginServicer_to_server
    gpus = Gpus(api, options.calls)
    servers = [
        listen(endpoint, lambda server: add(gpus, server)),
        register(KUBELET / f"plugins_registry/{DRIVER}-reg.sock", plugin, lambda: None),
    ]
    body = slice_of(options.node, options.root)
    while signal.sigtimedwait({signal.SIGTERM}, LOOK_S) is None:
        publish(api, body)
    for server in servers:
        server.stop(None)
    api.delete(f"{SLICES}/{body['metadata']['name']}", {})


if __name__ == "__main__":
    main()
