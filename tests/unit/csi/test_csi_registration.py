"""The driver's life on a node: registration with the kubelet, sockets, end."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from epfabric_agent.proto import csi_pb2, csi_pb2_grpc, registration_pb2
from unit.csi.kubelet import START_S, Node


def test_the_kubelet_learns_name_version_and_a_socket_that_answers(node: Node) -> None:
    with node.kubelet_plugin_watcher() as watcher:
        info = watcher.GetInfo(registration_pb2.InfoRequest(), timeout=30)
        assert (info.type, info.name) == ("CSIPlugin", "csi.epfabric.io")
        assert list(info.supported_versions) == ["1.0.0"]
        with grpc.insecure_channel(f"unix:{info.endpoint}") as channel:
            identity = csi_pb2_grpc.IdentityStub(channel)
            plugin = identity.GetPluginInfo(csi_pb2.GetPluginInfoRequest(), timeout=30)
            assert plugin.name == info.name
            assert plugin.vendor_version
            assert identity.Probe(csi_pb2.ProbeRequest(), timeout=30).ready.value
            capabilities = identity.GetPluginCapabilities(
                csi_pb2.GetPluginCapabilitiesRequest(), timeout=30
            )
            assert list(capabilities.capabilities) == []
        accepted = registration_pb2.RegistrationStatus(plugin_registered=True)
        watcher.NotifyRegistrationStatus(accepted, timeout=30)
    assert node.driver is not None
    assert node.driver.poll() is None


def test_a_refusal_by_the_kubelet_ends_the_driver_with_an_error(node: Node) -> None:
    with node.kubelet_plugin_watcher() as watcher:
        refused = registration_pb2.RegistrationStatus(plugin_registered=False, error="no")
        watcher.NotifyRegistrationStatus(refused, timeout=30)
    assert node.driver is not None
    assert node.driver.wait(START_S) == 1


def test_a_stopped_driver_takes_its_registration_away_and_ends_well(node: Node) -> None:
    assert node.registration.exists()
    assert node.stop_driver() == 0
    assert not node.registration.exists()


def test_a_killed_drivers_sockets_do_not_stop_the_next_one(node: Node) -> None:
    node.stop_driver(signal.SIGKILL)
    assert node.endpoint.exists()
    node.start_driver()


def test_only_root_reaches_the_drivers_sockets(node: Node) -> None:
    for path in (node.endpoint, node.registration):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--endpoint", "tcp://1.2.3.4:5"], "unix:///absolute/path"),
        (["--kubeconfig", "{tmp}/none"], "kubeconfig"),
        ([], "--kubeconfig FILE"),
    ],
)
def test_a_wrong_start_says_what_to_do(tmp_path: Path, arguments: list[str], says: str) -> None:
    program = str(Path(sys.executable).with_name("epfabric-csi"))
    places = ["--node", "n", "--state-dir", str(tmp_path / "state")]
    filled = [argument.format(tmp=tmp_path) for argument in arguments]
    ended = subprocess.run(
        [program, *places, *filled], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr


def test_generated_modules_are_current(tmp_path: Path) -> None:
    agent = Path(__file__).resolve().parents[3] / "agent"
    subprocess.run(
        [sys.executable, str(agent / "proto" / "generate.py"), str(tmp_path)], check=True
    )
    made = sorted((tmp_path / "epfabric_agent" / "proto").glob("*_pb2*"))
    assert len(made) >= 8
    for path in made:
        committed = agent / "epfabric_agent" / "proto" / path.name
        assert committed.exists(), f"run agent/proto/generate.py: {path.name} is missing"
        assert committed.read_bytes() == path.read_bytes(), f"run agent/proto/generate.py: {path}"
