"""Manifests, certificates and the command line: what is wrong is said in a sentence."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from epfabric_agent.main import main
from epfabric_agent.manifest.read import ManifestError, parse, read
from epfabric_agent.options import options_of, parser
from epfabric_agent.pki import authority
from epfabric_agent.pki.identity import NodeIdentity, PkiError, node_of, renew_at

ROOT = Path(__file__).resolve().parents[3]
FABRIC: dict[str, Any] = {
    "apiVersion": "epfabric.io/v1alpha1",
    "kind": "EPFabric",
    "metadata": {"name": "moe"},
    "spec": {"namespaceSelector": {}, "transport": {"allowTcp": True}},
}


def peers(**fields: Any) -> dict[str, Any]:
    listed = [{"node": "a", "endpoint": "192.0.2.1:7470"}]
    return {
        "apiVersion": "epfabric.io/v1alpha1",
        "kind": "EPFabricPeers",
        "peers": listed,
        **fields,
    }


def test_the_example_is_read() -> None:
    manifest = read(ROOT / "examples/two-agents/fabric.yaml")
    assert [peer.node for peer in manifest.peers] == ["a", "b"]
    assert manifest.groups == ("moe",)
    assert manifest.settings.proxies.per_gpu == 1
    assert manifest.settings.fifo.depth == 1024


@pytest.mark.parametrize(
    ("documents", "says"),
    [
        ([FABRIC], "one document of kind EPFabricPeers"),
        ([peers()], "one document of kind EPFabric,"),
        ([FABRIC, peers(), peers()], "not 2"),
        ([FABRIC | {"apiVersion": "v1"}, peers()], "apiVersion must be"),
        ([FABRIC, peers(peer=1)], "no field 'peer'"),
        ([FABRIC, peers(peers=[])], "at least this node"),
        ([FABRIC, peers(peers=[{"node": "a"}])], "IP:PORT"),
        ([FABRIC, peers(peers=[{"node": "a", "endpoint": "host:1"}])], "an IP address and a port"),
        ([FABRIC, peers(peers=[{"node": "a", "endpoint": "192.0.2.1"}])], "an IP address"),
        ([FABRIC, peers(peers=peers()["peers"] * 2)], "twice"),
        ([FABRIC, peers(groups=["A b"])], "groups must be"),
        ([FABRIC | {"spec": {"namespaceSelector": {}, "fifo": {"depht": 1}}}, peers()], "depht"),
        ([FABRIC | {"spec": {}}, peers()], "namespaceSelector is required"),
    ],
)
def test_a_wrong_manifest_says_what_and_where(documents: list[Any], says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        parse(documents)


def test_a_node_that_is_no_peer_is_told_the_names() -> None:
    with pytest.raises(ManifestError, match="the manifest has a"):
        parse([FABRIC, peers()]).peer("z")


def test_certificates_carry_node_and_address_and_keys_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "pki"
    assert main(["pki", "init", str(folder)]) == 0
    arguments = ["--node", "n.1", "--fabric", "moe", "--address", "192.0.2.7"]
    assert main(["pki", "issue", str(folder), *arguments, "--out", str(tmp_path / "out")]) == 0
    own = authority.load(tmp_path / "out", "n.1")
    certificate = x509.load_pem_x509_certificate(own.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert node_of(names.get_values_for_type(x509.DNSName), "moe") == "n.1"
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.7"]
    issuer = x509.load_pem_x509_certificate(own.ca)
    certificate.verify_directly_issued_by(issuer)
    for key in (folder / "ca.key", tmp_path / "out" / "n.1.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert not (tmp_path / "out" / "ca.key").exists()
    middle = renew_at(own.certificate)
    assert certificate.not_valid_before_utc < middle < certificate.not_valid_after_utc


def test_an_authority_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority.make_authority(tmp_path, 1)
    assert main(["pki", "init", str(tmp_path)]) == 2
    assert "holds an authority already" in capsys.readouterr().err


def test_missing_pieces_say_which_command_makes_them(tmp_path: Path) -> None:
    with pytest.raises(PkiError, match="pki init"):
        authority.issue(tmp_path, NodeIdentity("a", "moe", "192.0.2.1"), 1, tmp_path)
    with pytest.raises(PkiError, match="pki issue"):
        authority.load(tmp_path, "a")
    authority.make_authority(tmp_path, 1)
    with pytest.raises(PkiError, match="no certificate for node"):
        authority.issue(tmp_path, NodeIdentity("a", "moe", "host"), 1, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--node"),
        (["--node", "a"], "--fabric"),
        (["--node", "a", "--fabric", "f"], "--address"),
        (["--node", "a", "--pki", "x"], "--manifest"),
        (["--node", "a", "--manifest", "m", "--kubeconfig", "k"], "--kubeconfig"),
    ],
)
def test_a_command_line_that_lacks_something_says_what(arguments: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        options_of(parser({}).parse_args(arguments))


def test_the_environment_of_a_pod_is_enough() -> None:
    environ = {"NODE_NAME": "n", "HOST_IP": "192.0.2.1", "EPFABRIC_FABRIC": "moe"}
    options = options_of(parser(environ).parse_args([]))
    assert (options.node, options.fabric, options.address) == ("n", "moe", "192.0.2.1")
    assert options.port == 7470
