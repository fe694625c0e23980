"""Faults of one object or one answer stop neither the operator nor its other work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, cast

import pytest
from epfabric_operator.config import parse
from epfabric_operator.kube import ApiError, Kube
from epfabric_operator.loop import Loop
from epfabric_operator.metrics import Metrics
from epfabric_operator.reconcile import Reconciler
from epfabric_operator.signer import Signer
from epfabric_operator.worklist import EVERYTHING, Work, Worklist
from epfabric_operator.world import World
from kubernetes import client
from unit.operator.builders import fabric


@contextmanager
def answering(body: bytes, declared: int | None = None) -> Iterator[Kube]:
    """An API server whose every answer is `body`, of a length that it may declare wrongly."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) if declared is None else declared))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield kube(f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def kube(host: str, hook: Any = None) -> Kube:
    settings = client.Configuration(host=host)
    settings.retries = 0
    settings.api_key = {"authorization": "t", "BearerToken": "t"}
    settings.refresh_api_key_hook = hook
    return Kube(client.ApiClient(configuration=settings))


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"items": ['])
def test_an_answer_that_is_no_json_is_a_failed_request(body: bytes) -> None:
    with answering(body) as api:
        with pytest.raises(ApiError):
            api.get("/x")
        with pytest.raises(ApiError):
            api.pages("/x")


def test_a_watch_that_sends_nonsense_is_a_failed_request() -> None:
    with answering(b"nonsense\n") as api, pytest.raises(ApiError, match="broke"):
        list(api.watch("/x", "1"))


def test_an_answer_that_is_cut_off_is_a_failed_request() -> None:
    with answering(b'{"a": 1}', declared=1000) as api, pytest.raises(ApiError):
        api.get("/x")


def test_a_token_that_cannot_be_read_is_a_failed_request() -> None:
    def gone(_: client.Configuration) -> None:
        raise FileNotFoundError("token")

    with pytest.raises(ApiError, match="token"):
        kube("http://127.0.0.1:1", gone).get("/x")


class Broken:
    """A reconciler that fails as a fault in the code would, for one fabric or for all."""

    def __init__(self, observes: bool) -> None:
        self.observes = observes
        self.done: list[str] = []

    def observe(self) -> World:
        if not self.observes:
            raise KeyError("nodeUid")
        return World(fabrics={name: fabric(name) for name in ("a", "b", "c")})

    def reconcile(self, name: str, world: World) -> None:
        if name == "b":
            raise KeyError(name)
        self.done.append(name)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def loop(reconciler: Broken, clock: Clock) -> tuple[Loop, Worklist]:
    worklist = Worklist(clock=clock)
    metrics = Metrics(parse(["--agent-image=x"], {}), lambda: False)
    made = Loop(worklist, cast(Reconciler, reconciler), cast(Signer, None), 10, metrics, clock)
    return made, worklist


def test_a_fabric_that_fails_stops_no_other_and_is_tried_again() -> None:
    clock, reconciler = Clock(), Broken(observes=True)
    made, worklist = loop(reconciler, clock)
    made.step([EVERYTHING], threading.Event())
    assert reconciler.done == ["a", "c"]
    clock.now += 60
    assert worklist.take(0) == [Work("fabric", "b")]


def test_a_cluster_that_cannot_be_understood_is_looked_at_again() -> None:
    clock, reconciler = Clock(), Broken(observes=False)
    made, worklist = loop(reconciler, clock)
    made.step([EVERYTHING], threading.Event())
    clock.now += 60
    assert worklist.take(0) == [EVERYTHING]
