"""An agent that starts while the API server is away serves its node's pods as before."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from agent.kubeconfig import kubeconfig
from agent.two_agents import AGENT, RANK, ROOT, WAIT_S, free_port
from epfabric_agent.csi import records
from epfabric_agent.kube import settings_file
from epfabric_agent.kube.settings import Wanted
from epfabric_agent.manifest.read import read
from epfabric_crds import to_dict
from epfabric_crds.convert import from_dict
from epfabric_crds.node import EPFabricNodeSpec
from harness.process import Process, Processes, wait_until

NODE, FABRIC = "a", "moe"


def wanted() -> Wanted:
    fields = to_dict(read(ROOT / "examples/two-agents/fabric.yaml").settings)
    spec = from_dict(EPFabricNodeSpec, fields | {"fabric": FABRIC, "nodeUid": "n"}, strict=False)
    return Wanted("u-1", 7, spec)


def published(state: Path) -> Path:
    """The directory of a pod's volume, as the CSI driver left it."""
    directory = state / "volumes" / "pod"
    directory.mkdir(parents=True)
    record = records.Record(
        boot_id=records.boot_id(), volume_id="v-1", namespace="ns", pod="p", pod_uid="u",
        service_account="s", fabric=FABRIC, group="g", owner=None, directory=str(directory),
        target_path="/nowhere",
    )  # fmt: skip
    records.write(state, record)
    return directory


def start(processes: Processes, state: Path) -> Process:
    config = kubeconfig(processes.folder, free_port("127.0.0.1"))  # nobody listens there
    flags = [f"--node={NODE}", f"--fabric={FABRIC}", "--address=127.0.5.3", "--port=0"]
    argv: list[str | Path] = [AGENT, *flags, f"--kubeconfig={config}", f"--state-dir={state}"]
    return processes.start("agent", argv)


def test_sockets_come_back_and_ranks_run_without_an_api_server() -> None:
    with Processes("epfabric-kept-") as processes:
        state = processes.folder / "state"
        directory = published(state)
        settings_file.keep(state, NODE, wanted())
        agent = start(processes, state)
        path = directory / "agent.sock"
        wait_until(path.exists, WAIT_S, "the pod's socket", agent)
        assert "kept settings of generation 7" in agent.tail(100)
        rank = processes.start("rank", [sys.executable, RANK, str(path), "0", "1"])
        assert rank.wait(WAIT_S) == 0, rank.tail() + agent.tail()
        assert agent.stop() == 0, agent.tail()


def test_what_was_kept_is_read_back_and_is_private(tmp_path: Path) -> None:
    settings_file.keep(tmp_path, NODE, wanted())
    assert (tmp_path / settings_file.NAME).stat().st_mode & 0o777 == 0o600
    assert settings_file.kept(tmp_path, NODE, FABRIC) == wanted()
    settings_file.forget(tmp_path)
    assert settings_file.kept(tmp_path, NODE, FABRIC) is None


@pytest.mark.parametrize(
    "damage",
    ["mode", "cut", "changed", "version", "node", "fabric", "no object", "link", "empty"],
)
def test_a_file_that_cannot_be_trusted_is_not_used(tmp_path: Path, damage: str) -> None:
    settings_file.keep(tmp_path, NODE, wanted())
    path, node, fabric = tmp_path / settings_file.NAME, NODE, FABRIC
    text = path.read_text()
    match damage:
        case "mode":
            path.chmod(0o620)
        case "cut":
            path.write_text(text[: len(text) // 2])
        case "changed":
            body = json.loads(text)
            body["spec"]["proxies"]["perGPU"] = 9
            path.write_text(json.dumps(body))
        case "version":
            body = {k: v for k, v in json.loads(text).items() if k != "sha256"} | {"version": 2}
            path.write_text(json.dumps(body | {"sha256": settings_file._digest(body)}))
        case "node":
            node = "b"
        case "fabric":
            fabric = "other"
        case "no object":
            path.write_text("[]")
        case "link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        case "empty":
            path.write_text("")
    assert settings_file.kept(tmp_path, node, fabric) is None
