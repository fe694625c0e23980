"""Which GPU a rank says it uses: whether its pod has it, and where it is; for session.opening.

A UUID decides where proxies run and which NICs they use, and nothing else. It is checked all the
same, since what a status or a log says of it has to be so.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from epfabric_crds.node import Gpu

from epfabric_agent.groups.local_rank import Refusal
from epfabric_agent.pods import Pod

_UUID = re.compile(r"(?:gpu-|mig-)?([0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12})(?:::\d+)?")
_LISTED = 8


@dataclass(frozen=True)
class Held:
    """GPUs that a pod's containers have: by UUID, and resources or drivers whose devices the
    kubelet names otherwise (by a number, by a claim's device)."""

    uuids: frozenset[str]
    others: frozenset[str]


class KubeletSilent(Exception):
    """The kubelet does not say what a pod has; the text says why."""


Ask = Callable[[Pod, Callable[[Held], bool]], Awaitable[Held | None]]
"""What the kubelet gave a pod, None where there is no kubelet. Where what is known already is not
enough, it is asked anew, once. Raises KubeletSilent."""


async def nobody(_: Pod, __: Callable[[Held], bool]) -> Held | None:
    """Without Kubernetes there is no kubelet to ask."""
    return None


def is_uuid(name: str) -> bool:
    return _UUID.fullmatch(name.lower()) is not None


def plain(uuid: str) -> str:
    """Equal where the GPU is the same: without what it is a UUID of, and the number of a share."""
    found = _UUID.fullmatch(uuid.lower())
    return found[1].replace("-", "") if found else uuid.lower()


def refusal(uuid: str, pod: Pod, held: Held | None, here: Collection[str]) -> str:
    """Why the pod may not say that it uses this GPU; empty where it may. `here`: plain ones."""
    wanted = plain(uuid)
    if held is not None and wanted in map(plain, held.uuids):
        return ""
    if held is None or held.others:
        # Whose they are cannot be told by a UUID: it has to be one of the node's.
        return "" if wanted in here else f"this node has no GPU {uuid!r} that its agent can see"
    if not held.uuids:
        return f"the kubelet gave {pod.label} no GPU, so that it cannot use {uuid!r}"
    listed = ", ".join(sorted(held.uuids)[:_LISTED])
    return f"{uuid!r} is not among the GPUs that the kubelet gave {pod.label}: {listed}"


class Gpus:
    def __init__(self, held: Ask, found: Callable[[], tuple[Gpu, ...]]) -> None:
        """`found`: the node's."""
        self._held = held
        self._found = found

    async def named(self, uuid: str | None, pod: Pod) -> Gpu | None:
        """That GPU, None where none is named or nobody says where it is. Raises Refusal."""
        if uuid is None:
            return None
        here = {plain(gpu.uuid): gpu for gpu in self._found()}
        try:
            held = await self._held(pod, lambda held: not refusal(uuid, pod, held, here.keys()))
        except KubeletSilent as error:
            raise Refusal(
                "gpu",
                f"the kubelet does not say which GPUs {pod.label} has ({error}): connect again, or "
                "without a GPU",
            ) from error
        if why := refusal(uuid, pod, held, here.keys()):
            raise Refusal("gpu", why)
        return here.get(plain(uuid))


def numa_of(gpu: Gpu | None) -> int | None:
    """Its NUMA node; None: no GPU, or it says none."""
    return gpu.numa_node if gpu and gpu.numa_node is not None and gpu.numa_node >= 0 else None
