"""A real Prometheus that takes OTLP; used by the telemetry tier and the demo."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml
from harness import build
from harness.controlplane import free_ports
from harness.process import HarnessError, Process, Processes, wait_until

READY_SECONDS = 60.0
PROMOTED = ["service.instance.id", "k8s.node.name", "epfabric.fabric"]


class Prometheus:
    """One server, on loopback unless an address is given.

    `otlp` is the base address for an OTLP/HTTP metrics exporter.
    """

    def __init__(
        self, processes: Processes, name: str = "prometheus", address: str = "127.0.0.1"
    ) -> None:
        self.processes = processes
        self.name = name
        self.address = address
        self.url = ""
        self.process: Process | None = None

    @property
    def otlp(self) -> str:
        return f"{self.url}/api/v1/otlp"

    def start(self, port: int = 0) -> None:
        """Starts it, on a free port unless one is given; a second start keeps what was stored."""
        program = build.programs("prometheus")["prometheus"]
        folder = self.processes.folder / self.name
        folder.mkdir(exist_ok=True)
        configuration = {
            "global": {"scrape_interval": "15s"},
            "otlp": {"promote_resource_attributes": PROMOTED},
            "storage": {"tsdb": {"out_of_order_time_window": "10m"}},
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        address = f"{self.address}:{port or free_ports(1)[0]}"
        self.url = f"http://{address}"
        self.process = self.processes.start(
            self.name,
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
                "--web.enable-otlp-receiver",
                "--enable-feature=exemplar-storage,created-timestamp-zero-ingestion",
                "--log.level=warn",
            ],
        )
        wait_until(self.ready, READY_SECONDS, "Prometheus ready", self.process)

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query: [{"metric": {…}, "value": [time, "number"]}, …]."""
        address = f"{self.url}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                body = json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            raise HarnessError(f"Prometheus refused {expression!r}: {text[:500]}") from None
        if body["status"] != "success":
            raise HarnessError(f"Prometheus refused {expression!r}: {body.get('error')}")
        result: list[dict[str, Any]] = body["data"]["result"]
        return result


@contextmanager
def running(processes: Processes | None = None) -> Iterator[Prometheus]:
    """A server for the time of a block, in processes of its own unless some are given."""
    if processes is not None:
        server = Prometheus(processes)
        server.start()
        yield server
        server.stop()
        return
    with Processes("epfabric-prometheus-") as own:
        server = Prometheus(own)
        server.start()
        yield server
