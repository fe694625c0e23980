"""The steps of publishing and unpublishing a volume on this node; for the CSI service.

Each step may already be done, or be the last one before a kill: a repetition goes on from there.

publish:   directory → record → the agent binds its socket → mount
unpublish: mount → record → directory
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from epfabric_agent.csi import mounts, records
from epfabric_agent.csi.records import Record
from epfabric_agent.csi.request import Publication

SOCKET_NAME = "agent.sock"
SELINUX_ATTRIBUTE = "security.selinux"
SELINUX_LABEL = b"system_u:object_r:container_file_t:s0\0"
"""Without categories, so that a pod of any may use it; which one does, the mount decides."""
POLL_S = 0.02


class NotReady(Exception):
    """The agent has not bound the volume's socket yet; asking again later is right."""


class Conflict(Exception):
    """The volume is in use in another way; the message says which."""


@dataclass(frozen=True)
class Node:
    """This node's folders and boot."""

    state_dir: Path
    kubelet_root: Path
    boot_id: str
    selinux: bool = False

    def directory(self, volume_id: str) -> Path:
        return records.volumes_dir(self.state_dir) / volume_id


def prepare(node: Node) -> None:
    """Makes the folders; drops what earlier boots and unfinished steps left behind."""
    records_dir = records.records_dir(node.state_dir)
    volumes_dir = records.volumes_dir(node.state_dir)
    for folder, mode in ((node.state_dir, 0o755), (records_dir, 0o700), (volumes_dir, 0o755)):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)
    for leftover in records_dir.glob(".*.tmp"):
        leftover.unlink(missing_ok=True)
    current = {record.volume_id for record in records.read_all(node.state_dir, node.boot_id)}
    for volume_id in records.volume_ids(node.state_dir):
        if volume_id not in current:
            records.remove(node.state_dir, volume_id)
    for directory in volumes_dir.iterdir():
        if directory.name not in current:
            remove_directory(directory)


Step = Callable[[], None]


def publish(node: Node, wanted: Publication, wait_s: float, tenant: str = "") -> None:
    """Returns when the volume is mounted; raises NotReady after `wait_s` without a socket."""
    for step in publish_steps(node, wanted, wait_s, tenant):
        step()


def publish_steps(
    node: Node, wanted: Publication, wait_s: float, tenant: str = ""
) -> tuple[Step, ...]:
    directory = node.directory(wanted.volume_id)
    return (
        lambda: refuse_conflict(node, wanted),
        lambda: make_directory(directory, node.selinux),
        lambda: make_record(node, wanted, tenant),
        lambda: await_agent(directory, wanted.fabric, wait_s),
        lambda: placed(node, wanted.target).mkdir(mode=0o750, parents=True, exist_ok=True),
        lambda: mount(directory, placed(node, wanted.target)),
    )


def unpublish(node: Node, volume_id: str, target: Path) -> None:
    """Needs neither agent nor API server; an unknown volume is a finished one."""
    for step in unpublish_steps(node, volume_id, target):
        step()


def unpublish_steps(node: Node, volume_id: str, target: Path) -> tuple[Step, ...]:
    return (
        lambda: mounts.detach(placed(node, target)),
        lambda: remove_target(placed(node, target)),
        lambda: records.remove(node.state_dir, volume_id),
        lambda: remove_directory(node.directory(volume_id)),
    )


def abandon(node: Node, wanted: Publication) -> None:
    """Undoes an unfinished publish of this pod: after a final refusal no kubelet unpublishes."""
    if is_of(known_record(node, wanted.volume_id), record_of(node, wanted)):
        unpublish(node, wanted.volume_id, wanted.target)


def is_published(node: Node, wanted: Publication) -> bool:
    """A repeated publish of a mounted volume asks nobody: its pod may be running."""
    known = known_record(node, wanted.volume_id)
    directory = node.directory(wanted.volume_id)
    return is_of(known, record_of(node, wanted)) and is_mounted(
        directory, placed(node, wanted.target)
    )


def refuse_conflict(node: Node, wanted: Publication) -> None:
    known = known_record(node, wanted.volume_id)
    if known is not None and not is_of(known, record_of(node, wanted)):
        raise Conflict(
            f"the volume {wanted.volume_id} is published for the pod"
            f" {known.namespace}/{known.pod} ({known.pod_uid}) on {known.target_path}"
        )


def is_of(known: Record | None, wanted: Record) -> bool:
    """The tenant stays that of the first publish."""
    return known is not None and replace(known, tenant=wanted.tenant) == wanted


def make_record(node: Node, wanted: Publication, tenant: str) -> None:
    if known_record(node, wanted.volume_id) is None:
        records.write(node.state_dir, replace(record_of(node, wanted), tenant=tenant))


def await_agent(directory: Path, fabric: str, wait_s: float) -> None:
    if not wait_for_socket(directory, wait_s):
        raise NotReady(
            f"the agent of the fabric {fabric!r} has not yet opened this pod's socket on"
            f" this node: see the pods of the DaemonSet epfabric-agent-{fabric}"
        )


def placed(node: Node, target: Path) -> Path:
    """Where the target really lies; only the kubelet's root may be reached by a symbolic link."""
    root = node.kubelet_root
    place = root.resolve() / target.relative_to(root)
    if target.parent.resolve() != place.parent or place.is_symlink():
        raise Conflict(f"{target} leads through a symbolic link to {target.resolve()}")
    return place


def record_of(node: Node, wanted: Publication) -> Record:
    return Record(
        boot_id=node.boot_id,
        volume_id=wanted.volume_id,
        namespace=wanted.namespace,
        pod=wanted.pod,
        pod_uid=wanted.pod_uid,
        service_account=wanted.service_account,
        fabric=wanted.fabric,
        group=wanted.group,
        owner=wanted.owner,
        directory=str(node.directory(wanted.volume_id)),
        target_path=str(wanted.target),
    )


def known_record(node: Node, volume_id: str) -> Record | None:
    """The record of this boot; another boot's, or a damaged one, is as good as none."""
    try:
        record = records.read(node.state_dir, volume_id)
    except records.RecordError:
        return None
    return record if record is not None and record.boot_id == node.boot_id else None


def make_directory(directory: Path, selinux: bool) -> None:
    """Root's, 0755, and the same inode for as long as the volume lives.

    No kubelet labels a read-only volume. The socket that the agent binds takes over the label.
    """
    directory.mkdir(parents=True, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise Conflict(f"{directory} is no directory: remove it")
    os.chown(directory, os.geteuid(), os.getegid())
    directory.chmod(0o755)
    if selinux:
        os.setxattr(directory, SELINUX_ATTRIBUTE, SELINUX_LABEL, follow_symlinks=False)


def wait_for_socket(directory: Path, wait_s: float) -> bool:
    end = time.monotonic() + wait_s
    while not agent_listens(directory):
        if time.monotonic() >= end:
            return False
        time.sleep(POLL_S)
    return True


def agent_listens(directory: Path) -> bool:
    """A connection that says nothing; the agent takes it as nothing."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.setblocking(False)
            # The path through the descriptor is short; a full path may pass the limit of 107.
            probe.connect(f"/proc/self/fd/{fd}/{SOCKET_NAME}")
    except BlockingIOError:
        return True  # bound, and its queue is full
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def mount(directory: Path, target: Path) -> None:
    """Mounts the directory on the target unless that is done; what else lies there is removed."""
    if is_mounted(directory, target):
        return
    mounts.detach(target)
    mounts.attach_read_only(directory, target)


def is_mounted(directory: Path, target: Path) -> bool:
    options = mounts.options_of(target)
    if options is None or not options >= mounts.REQUIRED_OPTIONS:
        return False
    return same(directory, target)


def same(directory: Path, target: Path) -> bool:
    try:
        here, there = directory.stat(), target.stat()
    except FileNotFoundError:
        return False
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def remove_target(target: Path) -> None:
    """The kubelet looks after what else lies there: it must not keep the pod for ever."""
    try:
        target.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.ENOTDIR):
            raise


def remove_directory(directory: Path) -> None:
    """Removes a volume's directory with the socket in it; it holds nothing else of worth."""
    remove: Callable[[Path], None] = shutil.rmtree
    try:
        if not stat.S_ISDIR(directory.lstat().st_mode):
            remove = Path.unlink
        remove(directory)
    except FileNotFoundError:
        return
