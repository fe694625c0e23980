"""Never two tenures at once, however requests, pauses and durations of candidates interleave."""

from __future__ import annotations

import copy
import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from epfabric_operator.election import LONGEST_S, Election
from epfabric_operator.fence import fence
from epfabric_operator.kube import ApiError, Kube
from epfabric_operator.tenure import NotLeading, Tenure, Terms
from kubernetes import client

STEPS = 3000


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def quiet() -> None:
    """Nothing happens."""


class Leases:
    """One Lease, as the API server keeps it. `between` runs before and after each request."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.between: Callable[[], None] = quiet

    def get(self, path: str) -> dict[str, Any] | None:
        self.between()
        found = copy.deepcopy(self.lease)
        self.between()
        return found

    def create(self, path: str, body: dict[str, Any]) -> None:
        self._write(body, None)

    def replace(self, path: str, body: dict[str, Any]) -> None:
        self._write(body, body["metadata"].get("resourceVersion"))

    def meddle(self, dice: random.Random, known: bool) -> None:
        """Somebody deletes the Lease, empties it or gives it to another, by hand.

        Deletes only one that is `known`: nobody can see that one was taken and deleted since.
        """
        if self.lease is None:
            return
        if dice.random() < 0.3:
            self.lease = None if known else self.lease
            return
        self.version += 1
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        self.lease["spec"]["holderIdentity"] = dice.choice(["", "thief"])

    def _write(self, body: dict[str, Any], seen: str | None) -> None:
        self.between()
        now = self.lease["metadata"]["resourceVersion"] if self.lease else None
        if now != seen:
            raise ApiError(409, "Conflict", "changed")
        self.version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        self.between()


class Candidate:
    def __init__(self, name: str, leases: Leases, clock: Clock, duration_s: int) -> None:
        terms = Terms(duration_s)
        self.name = name
        self.busy = False
        self.tenure = Tenure(terms, clock)
        self.election = Election(cast(Kube, leases), "ns", name, terms, self.tenure, clock)

    def step(self) -> None:
        """One look at the Lease, as acquire() and keep() take it."""
        if self.busy:
            return
        self.busy = True
        with suppress(ApiError):
            if self.tenure.left_s() <= 0:
                self.tenure.end()  # a process that lost it is another one afterwards
                self.election.take()
            elif self.election.renew():
                self.tenure.end()
        self.busy = False

    def knows(self, lease: dict[str, Any] | None) -> bool:
        spec = (lease or {}).get("spec") or {}
        mark = (spec.get("holderIdentity"), spec.get("renewTime")) if spec else None
        return self.tenure.left_s() > 0 or self.election._seen[0] == mark

    def leave(self) -> None:
        """Ends in order, after which it is a new process."""
        if not self.busy and self.tenure.left_s() > 0:
            self.tenure.end()
            self.election.release()


def test_no_two_candidates_may_write_at_once() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    clock, leases = Clock(), Leases()
    candidates = [Candidate(f"c{i}", leases, clock, dice.choice([3, 15, 30])) for i in range(4)]
    led: list[str] = []

    def check() -> None:
        leading = [c.name for c in candidates if c.tenure.left_s() > 0]
        assert len(leading) <= 1, leading
        if leading and led[-1:] != leading:
            led.extend(leading)

    def between() -> None:
        """A request takes a while, in which others act and this one may be stopped for long."""
        clock.now += dice.choice([0.0, 0.01, 0.5, 2.0])
        if dice.random() < 0.02:
            clock.now += dice.uniform(1, 40)
        check()
        if dice.random() < 0.2:
            dice.choice(candidates).step()
            check()

    leases.between = between
    for candidate in candidates:
        candidate.step()
    for _ in range(STEPS):
        clock.now += dice.uniform(0, 1)
        check()
        if dice.random() < 0.005:
            leases.meddle(dice, all(c.knows(leases.lease) for c in candidates))
        if dice.random() < 0.01:
            dice.choice(candidates).leave()
        dice.choice(candidates).step()
        check()
    assert len(led) > 20
    assert set(led) == {c.name for c in candidates}


def lease(duration_s: int) -> dict[str, Any]:
    spec = {"holderIdentity": "o", "renewTime": "x", "leaseDurationSeconds": duration_s}
    return {"metadata": {"resourceVersion": "0"}, "spec": spec}


@pytest.mark.parametrize(("declared", "waits"), [(3, 15), (60, 60), (10**6, LONGEST_S)])
def test_a_candidate_waits_for_as_long_as_the_lease_says(declared: int, waits: float) -> None:
    clock, leases = Clock(), Leases()
    leases.lease = lease(declared)
    candidate = Candidate("c", leases, clock, 15)
    candidate.step()
    clock.now += waits
    candidate.step()
    assert candidate.tenure.left_s() == 0
    clock.now += 0.1
    candidate.step()
    assert candidate.tenure.left_s() > 0


def test_a_tenure_counts_from_before_the_request_and_leaves_time_for_writes_on_their_way() -> None:
    clock, leases = Clock(), Leases()
    candidate = Candidate("c", leases, clock, 15)

    def slow() -> None:
        clock.now += 1

    leases.between = slow
    candidate.step()
    assert clock.now == 1004.0
    assert candidate.tenure.left_s() == 10 - 4
    assert candidate.tenure.write_s() == 15 - 4
    clock.now += 6
    with pytest.raises(NotLeading):
        candidate.tenure.write_s()


def test_a_write_that_waits_for_its_connection_is_not_sent_after_the_tenure() -> None:
    """The look comes after connecting: here connecting takes longer than the tenure."""
    clock = Clock()
    tenure = Tenure(Terms(15), clock)
    tenure.renew(clock())
    received = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        settings = client.Configuration(host=f"http://127.0.0.1:{server.getsockname()[1]}")
        settings.retries = False
        api = client.ApiClient(configuration=settings)
        fence(api, tenure)

        def serve() -> None:
            connection, _ = server.accept()
            connection.settimeout(10)
            with connection, suppress(OSError):
                received.append(connection.recv(100))

        thread = threading.Thread(target=serve)
        thread.start()

        def asked() -> float:
            most_s = tenure.write_s()
            clock.now += 10  # from here on, while it connects
            return most_s

        with pytest.raises(ApiError, match="not renewed in time"):
            Kube(api, write_s=asked).create("/x", {})
        api.rest_client.close()
        thread.join(20)
    assert not thread.is_alive()
    assert not any(received)
