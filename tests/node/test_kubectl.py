"""`kubectl epfabric` where kubelets answer: their settings, pods' logs, a benchmark's Job."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from contract.plugin import Done, plugin
from epfabric_crds import names
from epfabric_operator.cli.bench import COLUMNS

from .fabric import NAME, SPACE, Fabric

pytestmark = pytest.mark.timeout(300)


def ask(fabric: Fabric, *words: str) -> Done:
    return plugin(*words, kubeconfig=fabric.site.cluster.kubeconfig)


def test_doctor_reads_what_the_kubelets_were_set_to(fabric: Fabric) -> None:
    """A whole fabric has no finding of severity error."""
    done = ask(fabric, "doctor", "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["unseen"] == []
    found = {one["check"]: one for one in report["findings"]}
    assert found["cpu-manager-policy"]["subject"] == ", ".join(fabric.site.names)
    assert "driver-not-registered" not in found
    assert {one["severity"] for one in report["findings"]} <= {"warning", "info"}


def test_a_support_bundle_holds_the_logs_of_every_pod_of_ours(
    fabric: Fabric, tmp_path: Path
) -> None:
    file = tmp_path / "bundle.tar.gz"
    done = ask(fabric, "gather", f"--file={file}", "--log-lines=200")
    assert done.returncode == 0, done.stderr
    assert "logs/" not in done.stderr, "left out"
    with tarfile.open(file) as archive:
        sizes = {member.name: member.size for member in archive}
    for pod in fabric.ours(""):
        base = f"epfabric/logs/{names.NODES_NAMESPACE}/{pod['metadata']['name']}"
        for container in pod["spec"]["containers"]:
            assert sizes.get(f"{base}/{container['name']}.log", 0) > 0, sorted(sizes)


def test_a_benchmark_measures_the_fabric_between_two_nodes(fabric: Fabric) -> None:
    words = ("bench", f"--fabric={NAME}", "-n", SPACE, "--iterations=20", "--timeout-s=90")
    done = ask(fabric, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    heads, *rows = done.stdout.splitlines()
    assert heads.split() == [name.upper() for name in COLUMNS]
    measured = {row.split("  ")[0].strip() for row in rows if row.split()[-2:] == ["2", "True"]}
    cases = {"barrier", "round trip 64 B", "round trip 7168 B", "stream 256 KiB"}
    assert (measured, len(rows)) == (cases, len(cases)), done.stdout
