"""Nothing that a bundle carries holds what was planted as a secret."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from epfabric_operator.cli import redact
from epfabric_operator.cli.redact import HIDDEN

SECRET = "s3cr3tPLANTED0123456789"
JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJlLXBsYW50ZWQ"
KEY = f"-----BEGIN EC PRIVATE KEY-----\n{SECRET}\n{SECRET}\n-----END EC PRIVATE KEY-----"


@pytest.mark.parametrize(
    "line",
    [
        f"Authorization: Bearer {SECRET}",
        f"authorization: basic {SECRET}",
        f"password={SECRET}",
        f"OTEL_TOKEN={SECRET} and more",
        f'{{"api_key": "{SECRET}", "a": 1}}',
        f"'secret': '{SECRET}'",
        f"--token {SECRET}",
        f"--db-password={SECRET}",
        f"http://user:{SECRET}@collector:4318/v1/metrics",
        f"https://host/path?sig={SECRET}&x=1",
        f"client_secret: {SECRET}",
        f"Set-Cookie: {SECRET}",
        f"x-api-key:{SECRET}",
        KEY,
        KEY.split("-----END")[0],
        f"AKIA{SECRET.upper()[:16]}".replace("PLANTED", "ABCDEFG"),
    ],
)
def test_a_log_line_loses_its_secret(line: str) -> None:
    said = redact.text(f"12:00 INFO x: {line}\nnext line")
    assert SECRET not in said
    assert HIDDEN in said
    assert said.startswith("12:00 INFO x: ")


def test_a_service_accounts_token_is_hidden_wherever_it_stands() -> None:
    assert redact.text(f"sent [{JWT}] to them") == f"sent [{HIDDEN}] to them"


@pytest.mark.parametrize(
    "line",
    [
        "the certificate of node a ends in 3 h; renewing",
        "settings of generation 4; rank 3 of ns/g: session of ns/p",
        "no token was offered",
        "metrics go to http://collector.monitoring:4318/v1/metrics every 10 s",
        "secret epfabric-ca holds nothing that can sign: a new one is made",
        "barrier 7 of epoch 2: rank 3 did not come",
    ],
)
def test_a_line_without_secret_stays_as_it_is(line: str) -> None:
    assert redact.text(line) == line


def test_an_object_keeps_its_shape_and_loses_its_secrets() -> None:
    hidden = {"env": 0, "annotation": 1, "data": 2, "argument": 3, "field": 4, "url": 5}
    planted = {name: f"{SECRET}{number}" for name, number in hidden.items()}
    annotations = {"epfabric.io/fabric": "moe", "vault.example/role": planted["annotation"]}
    env = [
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "PLAIN", "value": planted["env"]},
        {"name": "REF", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]
    one: dict[str, Any] = {
        "metadata": {"name": "n", "annotations": annotations, "managedFields": [SECRET]},
        "data": {"k": planted["data"]},
        "stringData": {"k": SECRET},
        "spec": {
            "containers": [
                {
                    "env": env,
                    "args": [
                        "--port=1",
                        "--auth-token",
                        planted["argument"],
                        f"--password={SECRET}",
                    ],
                    "command": ["sh", "-c", f"a\nexport X={SECRET}"],
                    "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "X", "value": SECRET}]}},
                }
            ],
            "password": planted["field"],
            "telemetry": {"endpoint": f"http://u:{planted['url']}@collector:4318"},
            "request": base64.b64encode(SECRET.encode()).decode(),
            "replicas": 3,
            "caBundle": SECRET,
        },
    }
    text = json.dumps(redact.clean(one))
    assert SECRET not in text
    assert base64.b64encode(SECRET.encode()).decode() not in text
    kept = redact.clean(one)
    assert kept["spec"]["replicas"] == 3
    container = kept["spec"]["containers"][0]
    assert container["args"] == ["--port=1", "--auth-token", HIDDEN, f"--password={HIDDEN}"]
    assert container["env"][0] == env[0]
    assert container["env"][1] == {"name": "PLAIN", "value": HIDDEN}
    assert kept["metadata"]["annotations"]["epfabric.io/fabric"] == "moe"
    assert kept["data"] == {"k": HIDDEN}
    assert kept["spec"]["telemetry"]["endpoint"] == f"http://{HIDDEN}@collector:4318"
