"""One container of a pod: its runs, restarts with back-off, probes; driven by the pod's thread."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness.kubelet.plan import Json, PlanError
from harness.kubelet.probes import Probes
from harness.kubelet.status import State

TESTS = Path(__file__).resolve().parents[2]
FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 10.0
FORGIVEN_AFTER_S = 60.0
SETTLE_S = 10.0
NEVER = float("inf")
START_ERROR = 128
KILLED = 137


class Run:
    """One run of the launcher. `changed` is called from another thread when something happened."""

    def __init__(self, spec: Json, changed: Callable[[], None]) -> None:
        self.pid: int | None = None
        self.code: int | None = None
        self.error = ""
        self.over = threading.Event()
        self._changed = changed
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-m", "harness.kubelet.launch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            env={"PYTHONPATH": str(TESTS), "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"},
            start_new_session=True,
        )
        self._say(json.dumps(spec))
        threading.Thread(target=self._listen, daemon=True, name="container-run").start()

    def term(self) -> None:
        self._say("term")

    def kill(self) -> None:
        self._say("kill")

    def end(self, grace_s: float) -> None:
        """TERM, KILL after the grace; returns when nothing of it is left."""
        self.term()
        if not self.over.wait(grace_s):
            self.kill()
        self.settle()

    def settle(self) -> None:
        """After `kill`: until nothing of it is left."""
        if not self.over.wait(SETTLE_S):
            self._process.kill()  # its container dies with it
            self.over.wait(SETTLE_S)

    def _say(self, line: str) -> None:
        if (pipe := self._process.stdin) is not None:
            with contextlib.suppress(OSError, ValueError):  # it has ended
                pipe.write(line.encode() + b"\n")
                pipe.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            self.pid = message.get("pid", self.pid)
            self.code = message.get("exit", self.code)
            self.error = message.get("error", self.error)
            self._changed()
        self._process.wait()
        if self.code is None:
            self.code = START_ERROR if self.pid is None else KILLED
        self._process.stdout.close()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self.over.set()
        self._changed()


class Container:
    """`make` builds the launcher's spec at each start; PlanError keeps the container waiting.

    policy: Always, OnFailure or Never, of this container.
    """

    def __init__(
        self,
        definition: Json,
        policy: str,
        run_name: str,
        make: Callable[[], Json],
        address: str,
        changed: Callable[[], None],
    ) -> None:
        self.name: str = definition["name"]
        self.state = State(self.name, definition["image"])
        self.run: Run | None = None
        self._policy = policy
        self._run_name = run_name
        self._make = make
        self._changed = changed
        self._probes = Probes(definition, address)
        self._runs = 0
        self._backoff_s = FIRST_BACKOFF_S
        self._start_at = 0.0
        self._started_at = 0.0

    @property
    def finished(self) -> bool:
        """It has ended and its policy starts it no more."""
        end = self.state.ended
        return end is not None and not self._again(end.code)

    def tick(self, now: float) -> float:
        """Does what is due; returns when to be called again at the latest."""
        if self.run is None:
            if self.finished:
                return NEVER
            if now < self._start_at:
                return self._start_at
            self._start(now)
            return self._start_at if self.run is None else NEVER
        if self.run.over.is_set():
            self._ended(now, self.run)
            return self._start_at
        if self.run.pid is None:
            return NEVER
        if not self.state.running:
            self.state = self.state.runs(f"{self._run_name}/{self._runs}")
            self._probes.begin(now)
        return self._probe(now, self.run)

    def close(self) -> None:
        """After its run was told to end: the state then says how it ended."""
        if self.run is not None:
            self.run.settle()
            if self.run.pid is not None and not self.state.running:
                self.state = self.state.runs(f"{self._run_name}/{self._runs}")
            self._ended(time.monotonic(), self.run)

    def _start(self, now: float) -> None:
        try:
            spec = self._make()
        except PlanError as error:
            self.state = self.state.waits(error.reason, str(error))
            self._delay(now)
            return
        if self._runs > 0:
            self.state = replace(self.state, restarts=self._runs)
        self._runs += 1
        self._started_at = now
        self.run = Run(spec, self._changed)

    def _ended(self, now: float, run: Run) -> None:
        self.run = None
        code = START_ERROR if run.code is None else run.code
        reason = "StartError" if run.error else ("Completed" if code == 0 else "Error")
        self.state = self.state.ends(code, reason, run.error)
        if now - self._started_at > FORGIVEN_AFTER_S:
            self._backoff_s = FIRST_BACKOFF_S
        self._delay(now)

    def _delay(self, now: float) -> None:
        self._start_at = now + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, LONGEST_BACKOFF_S)

    def _again(self, code: int) -> bool:
        return self._policy == "Always" or (self._policy == "OnFailure" and code != 0)

    def _probe(self, now: float, run: Run) -> float:
        assert run.pid is not None
        seen = self._probes.tick(now, lambda argv, timeout_s: self._execute(argv, timeout_s))
        self.state = replace(self.state, started=seen.started, ready=seen.ready)
        if seen.dead:
            self.state = replace(self.state, ready=False)
            run.end(seen.grace_s)
        return seen.next_at

    def _execute(self, argv: list[str], timeout_s: float) -> bool:
        """Runs a probe's command inside the container."""
        if self.run is None or self.run.pid is None:
            return False
        try:
            spec = {**self._make(), "argv": argv, "join": self.run.pid}
        except PlanError:
            return False
        probe = Run(spec, lambda: None)
        if not probe.over.wait(timeout_s):
            probe.end(0.0)
        return probe.code == 0
