"""Broken files and command lines: each ends with a sentence and exit code 2, never a traceback."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from epfabric_agent.kube.api import ConfigError, connect
from epfabric_agent.main import main
from epfabric_agent.manifest.read import ManifestError, read
from epfabric_agent.pki import authority
from epfabric_agent.pki.check import check
from epfabric_agent.pki.identity import NodeIdentity, PkiError
from epfabric_agent.sampling import rounded

NODE = NodeIdentity("a", "moe", "127.0.0.1")
ROOT = Path(__file__).resolve().parents[3]


def now(days: int = 0) -> datetime.datetime:
    """Of the test, not of the import: certificates are made in between."""
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    """Good files of nodes a and b, and of another authority in `other`."""
    folder = tmp_path / "pki"
    for place in (folder, folder / "other"):
        authority.make_authority(place, 30)
        for node in "ab":
            authority.issue(place, NodeIdentity(node, "moe", "127.0.0.1"), 10, place)
    return folder


def garbage(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(b"\xffgarbage")


def copy(source: str, to: str) -> Callable[[Path], object]:
    return lambda folder: shutil.copy(folder / source, folder / to)


def of_node_b(folder: Path) -> None:
    copy("b.crt", "a.crt")(folder)
    copy("b.key", "a.key")(folder)


BROKEN = [
    (garbage("ca.crt"), "ca.crt holds no PEM certificate"),
    (garbage("a.crt"), "a.crt holds no PEM certificate"),
    (garbage("a.key"), "a.key holds no PEM key"),
    (copy("b.key", "a.key"), "a.key is not the key of a.crt"),
    (copy("other/ca.crt", "ca.crt"), "not signed by the authority in ca.crt"),
    (of_node_b, "a.crt is for b.moe.agents.epfabric.io, not for node a of fabric moe"),
]


def test_good_files_pass(pki: Path) -> None:
    check(authority.load(pki, "a"), NODE, now())


@pytest.mark.parametrize(("damage", "says"), BROKEN)
def test_broken_files_are_named(pki: Path, damage: Callable[[Path], object], says: str) -> None:
    damage(pki)
    with pytest.raises(PkiError, match=says):
        check(authority.load(pki, "a"), NODE, now())


@pytest.mark.parametrize(("days", "name"), [(-1, "a.crt"), (11, "a.crt"), (40, "a.crt")])
def test_files_out_of_time_say_from_when_until_when(pki: Path, days: int, name: str) -> None:
    with pytest.raises(PkiError, match=f"{name} is valid from .* clock says"):
        check(authority.load(pki, "a"), NODE, now(days))


def test_an_authority_out_of_time_is_named(tmp_path: Path) -> None:
    authority.make_authority(tmp_path, 2)
    authority.issue(tmp_path, NODE, 10, tmp_path)
    with pytest.raises(PkiError, match=r"ca\.crt is valid from"):
        check(authority.load(tmp_path, "a"), NODE, now(3))


@pytest.mark.parametrize("damage", [garbage("a.crt"), copy("other/ca.crt", "ca.crt")])
def test_the_agent_ends_before_it_listens(
    pki: Path,
    tmp_path: Path,
    damage: Callable[[Path], object],
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(pki)
    state = tmp_path / "state"
    manifest = ROOT / "examples/two-agents/fabric.yaml"
    flags = ["--manifest", str(manifest), "--node", "a", "--pki", str(pki)]
    assert main([*flags, "--state-dir", str(state)]) == 2
    assert "pki issue" in capsys.readouterr().err
    assert not (state / "sockets").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--node=../x", "--address=192.0.2.1"),
        ("--node=a/b", "--address=192.0.2.1"),
        ("--node=", "--address=192.0.2.1"),
        ("--node=a", "--address=host"),
        ("--node=a", "--address="),
        ("--node=a", "--address=192.0.2.1", "--fabric=a b"),
        ("--node=a", "--address=192.0.2.1", "--fabric="),
        ("--node=a", "--address=192.0.2.1", "--days=0"),
        ("--node=a", "--address=192.0.2.1", "--days=-9"),
        ("--node=a", "--address=192.0.2.1", "--days=99999999"),
    ],
)
def test_no_certificate_is_issued_for_what_is_no_node(
    tmp_path: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pki"
    authority.make_authority(folder, 1)
    arguments = ["pki", "issue", str(folder), "--fabric=moe", *options]
    try:
        status: object = main(arguments)
    except SystemExit as error:  # argparse ends by itself
        status = error.code
    assert status == 2
    assert "epfabric-agent" in capsys.readouterr().err
    assert {p.name for p in tmp_path.rglob("*.crt")} == {"ca.crt"}


@pytest.mark.parametrize(
    "text", [b"\xff\xfe\x00", b"[" * 5000, b"- {", b"\x00", b"a: *b", b"!!python/object:x {}"]
)
def test_a_manifest_that_is_no_yaml_is_named(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(text)
    with pytest.raises(ManifestError, match=r"m\.yaml is no YAML"):
        read(path)


def test_fields_that_are_no_strings_are_refused(tmp_path: Path) -> None:
    fabric, peers = yaml.safe_load_all((ROOT / "examples/two-agents/fabric.yaml").read_text())
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump_all([fabric, peers | {1: 2}]) + "x: 3\n")
    with pytest.raises(ManifestError, match="has no field 1"):
        read(path)


@pytest.mark.parametrize("text", ["{", "[]", "3", "a: b", "", "clusters: 7"])
def test_a_broken_kubeconfig_is_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ConfigError, match="no access to an API server"):
        connect(path)


def test_another_fabric_than_the_manifests_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = ROOT / "examples/two-agents/fabric.yaml"
    flags = ["--manifest", str(manifest), "--node=a", "--fabric=other"]
    assert main([*flags, "--state-dir", str(tmp_path)]) == 2
    assert "is named moe" in capsys.readouterr().err


def test_a_state_folder_that_is_a_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    manifest = ROOT / "examples/two-agents/fabric.yaml"
    assert main(["--manifest", str(manifest), "--node=a", "--state-dir", str(file)]) == 2
    assert "--state-dir must be a folder" in capsys.readouterr().err


def test_statistics_have_three_significant_digits() -> None:
    assert [rounded(s) for s in (0.014641934641486718, 12.3456, 0.0)] == [0.0146, 12.3, 0.0]
