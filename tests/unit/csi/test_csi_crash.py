"""A kill between any two steps, and a reboot, leave a volume that can be published and removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import grpc
import pytest
from epfabric_agent.csi import records, volumes
from epfabric_agent.csi.request import publication
from unit.csi.kubelet import Node, Pod

POD = Pod()
PUBLISH_STEPS = 6
UNPUBLISH_STEPS = 4

# Does the first steps of one request as the driver does them, then dies without any clean-up.
DIE_AFTER = """
import os, signal, sys
from pathlib import Path
from epfabric_agent.csi import records, volumes
from epfabric_agent.csi.request import publication
what, count, state, root, volume_id, target, *context = sys.argv[1:]
node = volumes.Node(Path(state), Path(root), records.boot_id())
if what == "publish":
    pairs = dict(zip(context[::2], context[1::2]))
    wanted = publication(volume_id, target, pairs, node.kubelet_root)
    steps = volumes.publish_steps(node, wanted, 20.0)
else:
    steps = volumes.unpublish_steps(node, volume_id, Path(target))
assert len(steps) >= int(count)
for step in steps[:int(count)]:
    step()
os.kill(os.getpid(), signal.SIGKILL)
"""


def die_after(node: Node, what: str, count: int) -> None:
    context = [text for pair in POD.context().items() for text in pair]
    places = [str(node.state_dir), str(node.kubelet_root), POD.volume_id, str(node.target(POD))]
    code = [sys.executable, "-c", DIE_AFTER, what, str(count), *places, *context]
    inside = node.in_host("unshare", "--mount", "--propagation", "unchanged", *code)
    victim = subprocess.Popen(inside, stderr=subprocess.PIPE)
    if what == "publish" and count >= 3:
        node.bind_agent(POD)
    _, errors = victim.communicate(timeout=60)
    assert victim.returncode == -signal.SIGKILL, errors.decode()


def wanted_of(node: Node) -> volumes.Step:
    wanted = publication(POD.volume_id, str(node.target(POD)), POD.context(), node.kubelet_root)
    return lambda: volumes.publish(this_boot(node), wanted, 0)


def this_boot(node: Node, boot_id: str = "") -> volumes.Node:
    return volumes.Node(node.state_dir, node.kubelet_root, boot_id or records.boot_id())


def test_the_counts_of_steps_below_are_those_of_the_driver(host: Node) -> None:
    wanted = publication(POD.volume_id, str(host.target(POD)), POD.context(), host.kubelet_root)
    node = this_boot(host)
    assert len(volumes.publish_steps(node, wanted, 0)) == PUBLISH_STEPS
    assert len(volumes.unpublish_steps(node, POD.volume_id, host.target(POD))) == UNPUBLISH_STEPS


@pytest.mark.parametrize("done", range(1, PUBLISH_STEPS + 1))
@pytest.mark.parametrize("then", ["publish", "unpublish"])
def test_a_kill_while_publishing_is_made_good_by_the_next_request(
    host: Node, done: int, then: str
) -> None:
    volumes.prepare(this_boot(host))
    host.target(POD).parent.mkdir(parents=True)
    die_after(host, "publish", done)
    host.start_driver()
    if then == "publish":
        if not (host.directory(POD) / "agent.sock").exists():
            with pytest.raises(grpc.RpcError):
                host.publish(POD)
            host.bind_agent(POD)
        host.publish(POD)
        assert len(host.host_mounts(POD)) == 1
        host.stop_agent()
    host.unpublish(POD)
    assert_nothing_left(host)


@pytest.mark.parametrize("done", range(1, UNPUBLISH_STEPS + 1))
def test_a_kill_while_unpublishing_is_made_good_by_the_next_request(host: Node, done: int) -> None:
    volumes.prepare(this_boot(host))
    host.target(POD).parent.mkdir(parents=True)
    die_after(host, "publish", PUBLISH_STEPS)
    assert len(host.host_mounts(POD)) == 1
    host.stop_agent()
    die_after(host, "unpublish", done)
    host.start_driver()
    host.unpublish(POD)
    assert_nothing_left(host)


def test_a_half_written_record_is_no_record_and_is_swept(host: Node) -> None:
    volumes.prepare(this_boot(host))
    folder = host.record(POD).parent
    (folder / f".{POD.volume_id}.77.tmp").write_bytes(b'{"version": 1,')
    host.record(POD).write_bytes(b'{"version": 1,')
    assert records.read_all(host.state_dir, records.boot_id()) == []
    volumes.prepare(this_boot(host))
    assert os.listdir(folder) == []


def test_after_a_reboot_old_records_count_for_nothing(host: Node) -> None:
    volumes.prepare(this_boot(host))
    host.target(POD).parent.mkdir(parents=True)
    die_after(host, "publish", 4)
    host.stop_agent()
    later = this_boot(host, "a-later-boot")
    assert records.read_all(host.state_dir, later.boot_id) == []
    assert volumes.known_record(later, POD.volume_id) is None
    volumes.prepare(later)
    assert not host.record(POD).exists()
    assert not host.directory(POD).exists()


def test_a_publish_after_a_reboot_replaces_the_record_even_before_a_sweep(host: Node) -> None:
    before = this_boot(host, "an-earlier-boot")
    volumes.prepare(before)
    wanted = publication(POD.volume_id, str(host.target(POD)), POD.context(), host.kubelet_root)
    with pytest.raises(volumes.NotReady):
        volumes.publish(before, wanted, 0)
    with pytest.raises(volumes.NotReady):
        wanted_of(host)()
    (record,) = records.read_all(host.state_dir, records.boot_id())
    assert record.volume_id == POD.volume_id


def test_unpublish_after_a_reboot_cleans_what_the_earlier_boot_left(host: Node) -> None:
    before = this_boot(host, "an-earlier-boot")
    volumes.prepare(before)
    wanted = publication(POD.volume_id, str(host.target(POD)), POD.context(), host.kubelet_root)
    with pytest.raises(volumes.NotReady):
        volumes.publish(before, wanted, 0)
    volumes.unpublish(this_boot(host), POD.volume_id, host.target(POD))
    assert_nothing_left(host)


def assert_nothing_left(host: Node) -> None:
    assert host.host_mounts(POD) == []
    assert not host.target(POD).exists()
    assert not host.record(POD).exists()
    assert not host.directory(POD).exists()
