"""Startup, readiness and liveness of one container; called by its container at every tick."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from harness.kubelet.plan import Json

Execute = Callable[[list[str], float], bool]
DEFAULT_GRACE_S = 5.0


@dataclass(frozen=True)
class Seen:
    """What the probes say. `dead`: end the container within `grace_s`."""

    started: bool
    ready: bool
    dead: bool
    next_at: float
    grace_s: float


class Probe:
    """One probe's counts; its default verdict stands until a threshold is passed."""

    def __init__(self, definition: Json, verdict: bool) -> None:
        self._definition = definition
        self._default = verdict
        self.verdict = verdict
        self.failed_for_good = False
        self.next_at = 0.0
        self._run_of_same = 0
        self._last = verdict

    def begin(self, now: float) -> None:
        self.verdict = self._default
        self.failed_for_good = False
        self._run_of_same = 0
        self.next_at = now + self._definition.get("initialDelaySeconds", 0)

    def tick(self, now: float, address: str, execute: Execute, ports: dict[str, int]) -> None:
        if now < self.next_at:
            return
        self.next_at = now + self._definition.get("periodSeconds", 10)
        good = attempt(self._definition, address, execute, ports)
        self._run_of_same = self._run_of_same + 1 if good == self._last else 1
        self._last = good
        name, default = ("successThreshold", 1) if good else ("failureThreshold", 3)
        if self._run_of_same >= self._definition.get(name, default):
            self.verdict = good
            self.failed_for_good = not good


class Probes:
    """The probes that the container defines."""

    def __init__(self, container: Json, address: str) -> None:
        self._address = address
        self._ports = {
            port["name"]: port["containerPort"]
            for port in container.get("ports", [])
            if "name" in port
        }
        self._startup = made(container, "startupProbe", verdict=False)
        self._liveness = made(container, "livenessProbe", verdict=True)
        self._readiness = made(container, "readinessProbe", verdict=False)

    def begin(self, now: float) -> None:
        """The container has just started."""
        for probe in (self._startup, self._liveness, self._readiness):
            if probe is not None:
                probe.begin(now)

    def tick(self, now: float, execute: Execute) -> Seen:
        if self._startup is not None and not self._startup.verdict:
            self._startup.tick(now, self._address, execute, self._ports)
            if not self._startup.verdict:
                dead = self._startup.failed_for_good
                return Seen(False, False, dead, self._startup.next_at, DEFAULT_GRACE_S)
        next_at = float("inf")
        for probe in (self._liveness, self._readiness):
            if probe is not None:
                probe.tick(now, self._address, execute, self._ports)
                next_at = min(next_at, probe.next_at)
        return Seen(
            started=True,
            ready=self._readiness is None or self._readiness.verdict,
            dead=self._liveness is not None and self._liveness.failed_for_good,
            next_at=next_at,
            grace_s=DEFAULT_GRACE_S,
        )


def made(container: Json, name: str, *, verdict: bool) -> Probe | None:
    return Probe(container[name], verdict) if container.get(name) else None


def attempt(definition: Json, address: str, execute: Execute, ports: dict[str, int]) -> bool:
    timeout_s = float(definition.get("timeoutSeconds", 1))
    if "exec" in definition:
        return execute(definition["exec"]["command"], timeout_s)
    if "httpGet" in definition:
        return http_get(definition["httpGet"], address, ports, timeout_s)
    if "tcpSocket" in definition:
        host = definition["tcpSocket"].get("host") or address
        return connects(host, port_of(definition["tcpSocket"]["port"], ports), timeout_s)
    return False


def port_of(port: int | str, ports: dict[str, int]) -> int:
    return ports.get(port, 0) if isinstance(port, str) else port


def connects(host: str, port: int, timeout_s: float) -> bool:
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return True
    except OSError:
        return False


def http_get(definition: Json, address: str, ports: dict[str, int], timeout_s: float) -> bool:
    host = definition.get("host") or address
    port = port_of(definition["port"], ports)
    connection: http.client.HTTPConnection
    if definition.get("scheme") == "HTTPS":
        unchecked = ssl._create_unverified_context()  # as kubelets do
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=unchecked)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    headers = {entry["name"]: entry["value"] for entry in definition.get("httpHeaders", [])}
    try:
        connection.request("GET", definition.get("path") or "/", headers=headers)
        return 200 <= connection.getresponse().status < 400
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
