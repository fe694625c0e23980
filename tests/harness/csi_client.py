"""Calls a CSI driver's Node service as a kubelet does; for the stand-in kubelet and CSI tests.

`csi_pb2.py` is made from `csi.proto` by `python -m harness.csi_client`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from harness import csi_pb2

HERE = Path(__file__).resolve().parent
NODE = "/csi.v1.Node/"
REGISTRATION = "/pluginregistration.Registration/"
SINGLE_NODE_WRITER = 1
TIMEOUT_S = 20.0
# Channels share connections by address, and a descriptor's number comes back for another folder.
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


class CsiError(Exception):
    """The driver refused or did not answer; `code` is the gRPC status name."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def volume_id(pod_uid: str, volume: str) -> str:
    """The kubelet's name for an inline volume: a new pod of the same name has another one."""
    return "csi-" + hashlib.sha256(f"{pod_uid}{volume}".encode()).hexdigest()


def volume_context(attributes: Mapping[str, str], pod: Mapping[str, Any]) -> dict[str, str]:
    """The volume's attributes and what `podInfoOnMount` adds; `pod` is the stored object."""
    metadata = pod["metadata"]
    return {
        **attributes,
        "csi.storage.k8s.io/pod.name": metadata["name"],
        "csi.storage.k8s.io/pod.namespace": metadata["namespace"],
        "csi.storage.k8s.io/pod.uid": metadata["uid"],
        "csi.storage.k8s.io/serviceAccount.name": pod["spec"].get("serviceAccountName", ""),
        "csi.storage.k8s.io/ephemeral": "true",
    }


def publish(
    socket: Path, volume: str, target: str, context: Mapping[str, str], *, readonly: bool = False
) -> None:
    """target: the path as the driver sees it; its parent exists, the target itself need not."""
    request = csi_pb2.NodePublishVolumeRequest(
        volume_id=volume,
        target_path=target,
        readonly=readonly,
        volume_context=dict(context),
        volume_capability=csi_pb2.VolumeCapability(
            mount=csi_pb2.MountVolume(),
            access_mode=csi_pb2.AccessMode(mode=SINGLE_NODE_WRITER),
        ),
    )
    call(socket, f"{NODE}NodePublishVolume", request, csi_pb2.NodePublishVolumeResponse)


def unpublish(socket: Path, volume: str, target: str) -> None:
    request = csi_pb2.NodeUnpublishVolumeRequest(volume_id=volume, target_path=target)
    call(socket, f"{NODE}NodeUnpublishVolume", request, csi_pb2.NodeUnpublishVolumeResponse)


def register(socket: Path) -> tuple[str, str]:
    """Asks who listens on a registration socket and accepts it: its name and its endpoint."""
    info = call(socket, f"{REGISTRATION}GetInfo", csi_pb2.InfoRequest(), csi_pb2.PluginInfo)
    fits = info.type == "CSIPlugin" and any(v.startswith("1.") for v in info.supported_versions)
    answer = csi_pb2.RegistrationStatus(
        plugin_registered=fits,
        error="" if fits else f"{info.type} {list(info.supported_versions)} is no CSI driver 1.x",
    )
    method = f"{REGISTRATION}NotifyRegistrationStatus"
    call(socket, method, answer, csi_pb2.RegistrationStatusResponse)
    if not fits:
        raise CsiError("INVALID_ARGUMENT", answer.error)
    return info.name, info.endpoint


Answer = TypeVar("Answer", bound=Message)


def call(socket: Path, method: str, request: Message, answer: type[Answer]) -> Answer:
    with channel_to(socket) as channel:
        stub = channel.unary_unary(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            found: Answer = stub(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise CsiError(error.code().name, error.details() or "") from error
        return found


@contextmanager
def channel_to(socket: Path) -> Iterator[grpc.Channel]:
    try:
        with (
            open_folder(socket.parent) as folder,
            grpc.insecure_channel(
                f"unix:/proc/self/fd/{folder}/{socket.name}", options=OWN_CONNECTION
            ) as channel,
        ):
            yield channel
    except FileNotFoundError as error:
        raise CsiError("UNAVAILABLE", f"the driver has no socket yet: {error}") from error


@contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    """A descriptor to go through: the full path of a socket may pass the limit of 107 bytes."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def generate(out: Path) -> None:
    """Writes `OUT/csi_pb2.py` and its types."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    includes = files("grpc_tools") / "_proto"
    plugin = Path(sys.executable).with_name("protoc-gen-mypy")
    command = ["protoc", f"-I{HERE}", f"-I{includes}", f"--plugin={plugin}"]
    if protoc.main([*command, f"--python_out={out}", f"--mypy_out=quiet:{out}", "csi.proto"]) != 0:
        raise SystemExit("protoc refused csi.proto: see above")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
