"""Pure parts of the driver: selectors, permission, records, the way to the API server."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from epfabric_agent.csi import apiserver, permission, records
from epfabric_agent.csi.records import Owner, Record

LABELS = {"team": "a", "tier": "prod"}


def term(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, True),
        ({"matchLabels": {"team": "a"}}, True),
        ({"matchLabels": {"team": "b"}}, False),
        ({"matchLabels": {"absent": ""}}, False),
        (term("team", "In", "a", "b"), True),
        (term("team", "In", "b"), False),
        (term("absent", "In", "a"), False),
        (term("team", "NotIn", "a"), False),
        (term("team", "NotIn", "b"), True),
        (term("absent", "NotIn", "a"), True),
        (term("team", "Exists"), True),
        (term("absent", "Exists"), False),
        (term("team", "DoesNotExist"), False),
        (term("absent", "DoesNotExist"), True),
        (term("team", "Unheard"), False),
        ({"matchLabels": {"team": "a"}, **term("tier", "In", "test")}, False),
    ],
)
def test_selectors_mean_what_kubernetes_means(selector: dict[str, Any], expected: bool) -> None:
    assert permission.matches(selector, LABELS) is expected


def fabric(**metadata: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "moe", **metadata},
        "spec": {"namespaceSelector": {"matchLabels": {"team": "a"}}},
    }


@pytest.mark.parametrize(
    ("fabric_object", "labels", "says"),
    [
        (fabric(), {"team": "a"}, None),
        (fabric(), {"team": "b"}, "may not use"),
        (fabric(), {}, "may not use"),
        (None, {"team": "a"}, "no EPFabric 'moe'"),
        (fabric(deletionTimestamp="now"), {"team": "a"}, "being deleted"),
        ({"metadata": {}, "spec": {}}, {"team": "a"}, "may not use"),
    ],
)
def test_a_namespace_outside_the_selector_is_refused_with_a_reason(
    fabric_object: dict[str, Any] | None, labels: dict[str, str], says: str | None
) -> None:
    found = permission.refusal("moe", fabric_object, "ns", {"metadata": {"labels": labels}})
    if says is None:
        assert found is None
    else:
        assert found is not None
        assert says in found


def record(volume_id: str, boot: str = "b1") -> Record:
    owner = Owner("batch/v1", "Job", "j", "u")
    return Record(boot, volume_id, "ns", "p", "u", "default", "moe", "g", owner, "/d", "/t")


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    without_owner = Record("b1", "v2", "ns", "p", "u", "", "moe", "", None, "/d", "/t")
    for written in (record("v1"), without_owner):
        records.write(tmp_path, written)
        assert records.read(tmp_path, written.volume_id) == written
    assert records.read_all(tmp_path, "b1") == [record("v1"), without_owner]
    assert records.read_all(tmp_path, "b2") == []
    assert [path.name for path in records.records_dir(tmp_path).iterdir()].count("v1.json") == 1


def test_one_damaged_record_hides_no_other(tmp_path: Path) -> None:
    records.write(tmp_path, record("good"))
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"version": 2}'), ("d", '{"version": 1}')):
        records.record_path(tmp_path, name).write_text(text)
    assert [found.volume_id for found in records.read_all(tmp_path, "b1")] == ["good"]


def test_a_record_under_another_volumes_name_counts_for_nothing(tmp_path: Path) -> None:
    records.write(tmp_path, record("v1"))
    records.record_path(tmp_path, "v1").rename(records.record_path(tmp_path, "v2"))
    assert records.read_all(tmp_path, "b1") == []


def test_a_token_file_is_read_at_every_request_and_a_dead_server_is_bounded(
    tmp_path: Path,
) -> None:
    access = apiserver.Access("127.0.0.1", 1, None, None, tmp_path / "absent")
    with pytest.raises(apiserver.Unreachable, match="absent"):
        apiserver.get(access, apiserver.fabric_path("moe"), 1.0)
    (tmp_path / "absent").write_text("t")
    with pytest.raises(apiserver.Unreachable, match="refused"):
        apiserver.get(access, apiserver.fabric_path("moe"), 1.0)


@pytest.mark.parametrize("text", ["", "a: b", "[", "current-context: x\ncontexts: []"])
def test_a_broken_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(apiserver.ConfigError, match="kubeconfig"):
        apiserver.from_kubeconfig(path)


def test_a_server_certificate_is_verified(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(
        "current-context: c\n"
        "contexts: [{name: c, context: {cluster: k, user: u}}]\n"
        "clusters: [{name: k, cluster: {server: 'https://127.0.0.1:6443'}}]\n"
        "users: [{name: u, user: {token: t}}]\n"
    )
    access = apiserver.from_kubeconfig(path)
    assert (access.host, access.port, access.token) == ("127.0.0.1", 6443, "t")
    assert access.tls is not None
    assert access.tls.verify_mode == ssl.CERT_REQUIRED


def test_names_cannot_lead_out_of_their_path() -> None:
    assert apiserver.fabric_path("../x").endswith("/epfabrics/..%2Fx")
    assert apiserver.namespace_path("a?b") == "/api/v1/namespaces/a%3Fb"
