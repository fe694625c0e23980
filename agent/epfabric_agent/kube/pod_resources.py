"""Asks the kubelet which GPUs it gave to a pod's containers; for session.gpus."""

from __future__ import annotations

from pathlib import Path

import grpc

from epfabric_agent.pods import Pod
from epfabric_agent.proto import podresources_pb2 as api
from epfabric_agent.proto import podresources_pb2_grpc
from epfabric_agent.session.gpus import Held, KubeletSilent, is_uuid

ANSWER_S = 10.0  # a kubelet that starts again is back by then
MAX_ANSWER_BYTES = 16 << 20  # as much as kubelets' own clients take: it speaks of all pods
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # a socket that is made anew is a new connection
]


class PodResources:
    def __init__(self, path: Path, answer_s: float = ANSWER_S) -> None:
        """`path`: the kubelet's socket, which may be absent."""
        self._path = path
        self._answer_s = answer_s

    async def __call__(self, pod: Pod) -> Held | None:
        """None where there is no such socket. Raises KubeletSilent."""
        if not self._path.exists():
            return None
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._path}", options=_OPTIONS) as channel:
                stub = podresources_pb2_grpc.PodResourcesListerStub(channel)
                request = api.ListPodResourcesRequest()
                answer = await stub.List(request, timeout=self._answer_s, wait_for_ready=True)
        except grpc.RpcError as error:
            raise KubeletSilent(f"{error.code().name}: {error.details()}") from error
        return held_by(answer, pod)


def held_by(answer: api.ListPodResourcesResponse, pod: Pod) -> Held:
    """What the pod's containers have, of all that the kubelet gave."""
    uuids: set[str] = set()
    others: set[str] = set()
    for one in answer.pod_resources:
        if (one.namespace, one.name) != (pod.namespace, pod.name):
            continue
        for container in one.containers:
            for given in container.devices:
                named = {name for name in given.device_ids if is_uuid(name)}
                uuids |= named
                if "gpu" in given.resource_name and len(named) < len(given.device_ids):
                    others.add(given.resource_name)
            for claimed in container.dynamic_resources:
                drivers = {device.driver_name for device in claimed.claim_resources}
                others |= {driver for driver in drivers if "gpu" in driver}
    return Held(frozenset(uuids), frozenset(others))
