"""SIGTERM ends the agent in order, with 0, whatever it waits for."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from agent.kubeconfig import kubeconfig
from agent.two_agents import AGENT, ROOT, WAIT_S, two_agents
from harness.process import Process, Processes, wait_until


class NobodySigns(BaseHTTPRequestHandler):
    """Stands for an API server whose operator is away; what it stands for never answers lists."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._reply({"metadata": {}})

    do_PATCH = do_POST

    def do_GET(self) -> None:
        if "certificatesigningrequests" in self.path:
            self.server.asked.set()  # type: ignore[attr-defined]
            self._reply({"status": {}})
        else:
            self.server.silence.wait(WAIT_S)  # type: ignore[attr-defined]

    def _reply(self, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def api_server() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), NobodySigns)
    server.silence = threading.Event()  # type: ignore[attr-defined]
    server.asked = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.silence.set()  # type: ignore[attr-defined]
        server.shutdown()
        thread.join(WAIT_S)
        server.server_close()


def agent(processes: Processes, port: int, name: str, *more: str, early: str = "") -> Process:
    """`early`: Python that runs in its process before its own."""
    config = kubeconfig(processes.folder, port)
    flags = ["--node=a", "--fabric=moe", "--address=127.0.5.1", "--port=0", *more]
    state = processes.folder / name
    (processes.folder / "sitecustomize.py").write_text(early)
    return processes.start(
        name,
        [AGENT, *flags, f"--kubeconfig={config}", f"--state-dir={state}"],
        env={**os.environ, "PYTHONPATH": str(processes.folder)},
    )


def test_an_agent_that_nobody_certifies_ends_when_told() -> None:
    with Processes("epfabric-ends-") as processes, api_server() as server:
        running = agent(processes, server.server_port, "uncertified")
        asked: threading.Event = server.asked  # type: ignore[attr-defined]
        wait_until(asked.is_set, WAIT_S, "the request to be made", running)
        assert running.stop(grace_s=WAIT_S) == 0, running.tail()


STUCK = """
import sys, threading, time
if any(word.startswith("--manifest") for word in sys.orig_argv):
    threading.Thread(target=time.sleep, args=(600,)).start()
"""
HELD = """
import logging, time
def hold(record):
    if record.getMessage() == "ending":  # said by the loop, which stands still in here
        time.sleep(600)
    return True
logging.getLogger("epfabric-agent").addFilter(hold)
"""


def test_a_thread_that_does_not_end_holds_up_no_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(STUCK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with two_agents() as pair:
        for running in pair.agents.values():
            assert running.stop() == 0, running.tail()


def test_an_agent_that_cannot_go_on_ends_though_a_thread_does_not(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(STUCK)
    with Processes("epfabric-ends-") as processes:
        manifest = ROOT / "examples/two-agents/fabric.yaml"
        running = processes.start(
            "uncertified",
            [
                *(AGENT, f"--manifest={manifest}", "--node=a"),
                *(f"--pki={tmp_path / 'nowhere'}", f"--state-dir={tmp_path / 'state'}"),
            ],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
        assert running.wait(WAIT_S) == 2, running.tail()


def test_an_agent_whose_loop_stands_still_ends_in_its_time_and_shows_where() -> None:
    with Processes("epfabric-ends-") as processes, api_server() as server:
        running = agent(processes, server.server_port, "held", "--stop-s=1", early=HELD)
        asked: threading.Event = server.asked  # type: ignore[attr-defined]
        wait_until(asked.is_set, WAIT_S, "the request to be made", running)
        assert running.stop() == 1, running.tail()
        assert "sitecustomize.py" in running.tail(100)


def test_an_agent_that_crashes_says_so() -> None:
    with Processes("epfabric-ends-") as processes, api_server() as server:
        running = agent(processes, server.server_port, "crashed")
        asked: threading.Event = server.asked  # type: ignore[attr-defined]
        wait_until(asked.is_set, WAIT_S, "the request to be made", running)
        os.kill(running.pid, signal.SIGSEGV)
        assert running.wait(WAIT_S) == -signal.SIGSEGV, running.tail()
        assert "Segmentation fault" in running.tail(100)


def heeds(process: Process) -> bool:
    """It has a handler for SIGTERM; before, Python is hardly there."""
    caught = Path(f"/proc/{process.pid}/status").read_text().split("SigCgt:")[1].split()[0]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("after_s", [0.0, 0.3, 0.6, 1.5])
def test_an_agent_that_starts_ends_when_told(after_s: float) -> None:
    with Processes("epfabric-ends-") as processes, api_server() as server:
        running = agent(processes, server.server_port, "starting")
        wait_until(lambda: heeds(running), WAIT_S, "the handler", running)
        time.sleep(after_s)
        running.signal(signal.SIGTERM)
        assert running.wait(WAIT_S) == 0, running.tail()
