"""Publishing and unpublishing by the running driver, with real mounts, as a kubelet asks."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest
from unit.csi.kubelet import Node, Pod, another, wait_for

POD = Pod()

# What a client without any right tries on the volume; prints what worked.
INTRUDER = """
import os, socket, sys
where = sys.argv[1]
sock = where + "/agent.sock"
def attempt(name, action):
    try:
        action()
    except OSError as error:
        print(name, "refused", error.errno)
    else:
        print(name, "worked")
attempt("create", lambda: open(where + "/x", "w"))
attempt("unlink", lambda: os.unlink(sock))
attempt("rename", lambda: os.rename(sock, where + "/y"))
attempt("chmod-socket", lambda: os.chmod(sock, 0o600))
attempt("chmod-directory", lambda: os.chmod(where, 0o777))
attempt("mkdir", lambda: os.mkdir(where + "/d"))
attempt("link", lambda: os.symlink("/", where + "/l"))
attempt("connect", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(sock))
"""


def published(node: Node, pod: Pod = POD) -> None:
    """A publish that meets its agent while it waits."""
    agent = threading.Thread(target=node.bind_agent, args=[pod])
    agent.start()
    node.publish(pod)
    agent.join(60)


def code_of(call: object) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as refused:
        call()  # type: ignore[operator]
    code: grpc.StatusCode = refused.value.code()
    return code


def test_publish_is_unavailable_until_the_agent_listens_then_mounts(node: Node) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        node.publish(POD)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "'moe'" in refused.value.details()
    assert node.host_mounts(POD) == []
    node.bind_agent(POD)
    node.publish(POD)
    assert len(node.host_mounts(POD)) == 1
    assert stat.S_IMODE(node.directory(POD).stat().st_mode) == 0o755
    assert node.directory(POD).stat().st_uid == 0


def test_a_socket_that_nobody_listens_on_counts_as_none(node: Node) -> None:
    published(node, POD)
    node.stop_agent()
    left_behind = another(POD, "moe-1")
    assert code_of(lambda: node.publish(left_behind)) == grpc.StatusCode.UNAVAILABLE
    node.bind_agent(left_behind)
    node.stop_agent()
    assert (node.directory(left_behind) / "agent.sock").exists()
    assert code_of(lambda: node.publish(left_behind)) == grpc.StatusCode.UNAVAILABLE


def test_the_host_sees_the_mount_read_only_not_only_the_driver(node: Node) -> None:
    published(node)
    (options,) = node.host_mounts(POD)
    assert {"ro", "nosuid", "nodev", "noexec"} <= options


@pytest.mark.parametrize("uid", [65534, 0])
def test_a_pod_can_connect_and_change_nothing(node: Node, uid: int) -> None:
    published(node)
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs"]
    # In the pod's own namespace the way to the target is not root's alone.
    pod_root = node.folder / "pod"
    pod_root.mkdir()
    node.folder.chmod(0o755)
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    inner = ["sh", "-c", script, "sh", str(node.target(POD)), str(pod_root)]
    client = [*become, "/usr/bin/python3", "-c", INTRUDER, str(pod_root)]
    if not Path("/usr/bin/python3").exists():
        pytest.fail("/usr/bin/python3 is missing: an unprivileged user needs it here")
    unshared = node.in_host("unshare", "--mount", "--propagation", "private", *inner, *client)
    out = subprocess.run(unshared, capture_output=True, text=True, check=False, timeout=60)
    assert out.returncode == 0, out.stderr
    results = dict(line.split(" ", 1) for line in out.stdout.splitlines())
    assert results.pop("connect") == "worked"
    assert len(results) == 7
    assert all(result.startswith("refused") for result in results.values()), results


def test_the_record_says_what_the_agent_needs_and_only_root_reads_it(node: Node) -> None:
    published(node)
    folder = node.record(POD).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert json.loads(node.record(POD).read_text()) == {
        "version": 1,
        "bootId": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "volumeId": POD.volume_id,
        "namespace": "team-a",
        "pod": "moe-0",
        "podUid": "uid-moe-0",
        "serviceAccount": "default",
        "fabric": "moe",
        "group": "job-1",
        "owner": {"apiVersion": "batch/v1", "kind": "Job", "name": "moe", "uid": "1b0e"},
        "directory": str(node.directory(POD)),
        "targetPath": str(node.target(POD)),
        "tenant": "",
    }


def test_a_repeated_publish_adds_no_second_mount(node: Node) -> None:
    published(node)
    inode = node.directory(POD).stat().st_ino
    for _ in range(3):
        node.publish(POD)
    assert len(node.host_mounts(POD)) == 1
    assert node.directory(POD).stat().st_ino == inode


def test_a_running_pods_volume_is_published_even_while_the_agent_restarts(node: Node) -> None:
    published(node)
    node.stop_agent()
    node.publish(POD)


def test_unpublish_leaves_nothing_and_may_be_repeated(node: Node) -> None:
    published(node)
    node.stop_agent()
    for _ in range(3):
        node.unpublish(POD)
    assert node.host_mounts(POD) == []
    assert not node.target(POD).exists()
    assert not node.record(POD).exists()
    assert not node.directory(POD).exists()


def test_unpublish_of_a_volume_that_was_never_published_succeeds(node: Node) -> None:
    node.unpublish(another(POD, "never"))


def test_unpublish_after_an_unavailable_publish_cleans_up(node: Node) -> None:
    assert code_of(lambda: node.publish(POD)) == grpc.StatusCode.UNAVAILABLE
    node.unpublish(POD)
    assert not node.record(POD).exists()
    assert not node.directory(POD).exists()


def test_a_restarted_driver_goes_on_with_the_volumes_of_this_boot(node: Node) -> None:
    published(node)
    assert node.stop_driver() == 0
    node.start_driver()
    assert node.record(POD).exists()
    node.publish(POD)
    assert len(node.host_mounts(POD)) == 1
    node.unpublish(POD)
    assert node.host_mounts(POD) == []


def test_two_publishes_at_once_make_one_mount(node: Node) -> None:
    codes: list[grpc.StatusCode] = []

    def ask() -> None:
        try:
            node.publish(POD)
            codes.append(grpc.StatusCode.OK)
        except grpc.RpcError as error:
            codes.append(error.code())

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    node.bind_agent(POD)
    for thread in threads:
        thread.join(60)
    allowed = {grpc.StatusCode.OK, grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE}
    assert len(codes) == 6
    assert set(codes) <= allowed
    node.publish(POD)
    assert len(node.host_mounts(POD)) == 1


def test_a_second_request_for_a_busy_volume_is_told_to_come_back(node: Node) -> None:
    waiting = threading.Thread(target=lambda: code_of(lambda: node.publish(POD)))
    waiting.start()
    wait_for(node.record(POD).exists, "the record of the first request")
    assert code_of(lambda: node.unpublish(POD)) == grpc.StatusCode.ABORTED
    waiting.join(60)
    node.unpublish(POD)


def test_one_volume_id_is_not_given_to_a_second_pod(node: Node) -> None:
    published(node)
    other = another(POD, "thief")
    with pytest.raises(grpc.RpcError) as refused:
        node.publish(other, volume_id=POD.volume_id)
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "team-a/moe-0" in refused.value.details()
    assert node.host_mounts(other) == []


def test_something_else_mounted_on_the_target_is_replaced(node: Node) -> None:
    assert code_of(lambda: node.publish(POD)) == grpc.StatusCode.UNAVAILABLE
    node.bind_agent(POD)
    node.target(POD).mkdir(parents=True)
    subprocess.run(node.in_host("mount", "-t", "tmpfs", "none", str(node.target(POD))), check=True)
    node.publish(POD)
    (options,) = node.host_mounts(POD)
    assert "ro" in options
    listing = subprocess.check_output(node.in_host("ls", str(node.target(POD))), text=True)
    assert listing.split() == ["agent.sock"]


def test_the_driver_loads_neither_native_code_nor_cluster_libraries() -> None:
    code = "import sys, epfabric_agent.csi.main; print('\\n'.join(sys.modules))"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert "epfabric_agent.csi.service" in loaded
    heavy = {"kopf", "kubernetes", "epfabric_agent._native", "numpy", "opentelemetry"}
    assert heavy.isdisjoint(loaded), heavy & set(loaded)
