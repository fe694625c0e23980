"""/metrics of a running operator is for those whom the API server lets read it."""

from __future__ import annotations

import json
import re
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import yaml
from contract.conftest import rendered
from contract.stand import NODES_NAMESPACE, Stand
from epfabric_crds import names
from harness.process import Process
from prometheus_client.parser import text_string_to_metric_families


@pytest.fixture(scope="module")
def reader(stand: Stand) -> Iterator[str]:
    """A token of an account that the chart's role is bound to."""
    roles = rendered({"ClusterRole"}, "epfabric-metrics-reader")
    roles[0]["metadata"]["name"] = f"{stand.prefix}-reader"
    stand.cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(roles))
    stand.cluster.kubectl(
        *("create", "clusterrolebinding", f"{stand.prefix}-reader"),
        f"--clusterrole={stand.prefix}-reader",
        f"--serviceaccount={NODES_NAMESPACE}:stranger",
    )
    yield token(stand, "stranger")
    gone = ("clusterrole,clusterrolebinding", f"{stand.prefix}-reader", "--ignore-not-found")
    stand.cluster.kubectl("delete", *gone)


def token(stand: Stand, account: str) -> str:
    return stand.cluster.kubectl("create", "token", account, "-n", NODES_NAMESPACE).strip()


def port_of(operator: Process) -> int:
    found = re.search(r"metrics on port (\d+)", operator.log.read_text())
    assert found, operator.tail()
    return int(found[1])


def ask(port: int, token: str | None, path: str = "/metrics") -> tuple[int, str]:
    """Status and body. Nobody vouches for the certificate."""
    context = ssl._create_unverified_context()
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_only_who_may_read_the_metrics_is_shown_them(
    stand: Stand, operator: Process, reader: str
) -> None:
    port = port_of(operator)
    for nobody in (None, "", "nonsense", reader[:-8] + "AAAAAAAA", "x" * 20000):
        status, said = ask(port, nobody)
        assert status == 401, said
        assert "Authorization: Bearer" in said
    status, said = ask(port, token(stand, names.AGENT_ACCOUNT))
    assert status == 403
    assert "epfabric-metrics-reader" in said
    assert ask(port, reader, "/")[0] == 404
    status, text = ask(port, reader)
    assert status == 200
    values = {f.name: f.samples for f in text_string_to_metric_families(text)}
    assert [sample.value for sample in values["epfabric_operator_leading"]] == [1.0]
    assert "epfabric_operator_reconcile_duration_seconds" in values
    assert "epfabric_operator_reconciles" in values
    assert json.dumps(text).count("Bearer") == 0


def test_a_token_that_ended_is_refused_soon(stand: Stand, operator: Process, reader: str) -> None:
    """Answers are kept for seconds, not for ever: the binding is taken away under a live token."""
    port = port_of(operator)
    assert ask(port, reader)[0] == 200
    binding = ("clusterrolebinding", f"{stand.prefix}-reader")
    stand.cluster.kubectl("delete", *binding)
    stand.eventually(lambda: ask(port, reader)[0] == 403, "the reader to be refused", operator)


def test_a_client_that_says_nothing_holds_up_nobody(operator: Process, reader: str) -> None:
    port = port_of(operator)
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    try:
        assert ask(port, None)[0] == 401
    finally:
        for one in silent:
            one.close()
