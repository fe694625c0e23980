"""Operators of one cluster, one of which leads while a fabric changes all the time.

What they wrote comes from the API server's audit log, where each has a user agent of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from contract.stand import WAIT_S, Stand
from epfabric_crds import names
from harness.audit import Write
from harness.process import Process, wait_until
from kubernetes import client

LEASE_S = 6  # so short that tests are, so long that a busy machine keeps it
CHANGE_S = 0.1
NODES = 3


@dataclass(frozen=True)
class Replica:
    name: str
    process: Process

    @property
    def agent(self) -> str:
        """How its user agent begins."""
        return f"epfabric-operator/{self.name}_"

    @property
    def leads(self) -> bool:
        return "leading as" in self.process.tail(1000)

    def own(self, writes: Iterable[Write]) -> list[Write]:
        return [write for write in writes if write.agent.startswith(self.agent)]


class Replicas:
    """`leader` leads, `standby` waits; `succeed` says that they have changed."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        self.begin = stand.cluster.audit.end()
        self._numbers = itertools.count()
        self.leader = self.start()
        self._led(self.leader)
        self.standby = self.start()

    def start(self, kubeconfig: Path | None = None) -> Replica:
        name = f"{self.stand.prefix}-r{next(self._numbers)}"
        options = (f"--lease-seconds={LEASE_S}",)
        process = self.stand.launch_operator(
            name, *options, kubeconfig=kubeconfig, env={**os.environ, "POD_NAME": name}
        )
        return Replica(name, process)

    def writes(self, since: int | None = None) -> list[Write]:
        found = self.stand.cluster.audit.writes(self.begin if since is None else since)
        return [write for write in found if write.agent.startswith("epfabric-operator/")]

    def succeed(self, kubeconfig: Path | None = None) -> Replica:
        """Waits until the one that stood by leads and works; the one that led before."""
        before, self.leader = self.leader, self.standby
        self._led(self.leader)
        self.standby = self.start(kubeconfig)
        return before

    def stand_by(self) -> None:
        """Waits until the standby looks at the Lease."""
        text = "waiting for the Lease"
        process = self.standby.process
        wait_until(lambda: text in process.tail(1000), WAIT_S, text, process)

    def _led(self, replica: Replica) -> None:
        since = self.stand.cluster.audit.end()

        def works() -> bool:
            writes = replica.own(self.writes(since)) if replica.leads else []
            return any(write.resource != "leases" for write in writes)

        wait_until(works, WAIT_S, f"{replica.name} to lead and write", replica.process)

    def close(self) -> None:
        for replica in (self.standby, self.leader):
            replica.process.stop()


def reigns(writes: Iterable[Write]) -> list[str]:
    """Who wrote, in order: a name stands twice where two wrote by turns.

    A write that began before another's ended counts as both orders.
    """
    done = sorted((w for w in writes if w.code < 400), key=lambda w: w.received)
    order = [agent for agent, _ in itertools.groupby(w.agent for w in done)]
    for one, other in itertools.pairwise(done):
        if one.agent != other.agent and one.answered > other.received:
            order.append(one.agent)
    return order


@contextlib.contextmanager
def changing(stand: Stand, name: str) -> Iterator[None]:
    """A fabric over some nodes whose spec changes all the time, so that its leader writes."""
    for index in range(NODES):
        stand.node(f"{name}-{index}", name)
    stand.apply(stand.fabric(name))
    api = client.CustomObjectsApi(stand.cluster.client)
    over = threading.Event()

    def change() -> None:
        for number in itertools.count():
            if over.wait(CHANGE_S):
                return
            body = {"spec": {"proxies": {"perGPU": 1 + number % 4}}}
            with contextlib.suppress(client.ApiException):
                api.patch_cluster_custom_object(
                    names.GROUP, names.VERSION, names.FABRICS, name, body
                )

    thread = threading.Thread(target=change, daemon=True, name="changes")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(WAIT_S)
        stand.delete("epf", name)
        assert not thread.is_alive(), "the changes do not end"
