"""Two operators never lead at once, whatever happens to the one that leads, and one soon does."""

from __future__ import annotations

import datetime
import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.relay import Relay
from contract.replicas import LEASE_S, Replica, Replicas, changing, reigns
from contract.stand import NAMESPACE, Stand
from epfabric_crds import names
from harness.audit import Write
from harness.process import wait_until

LOST = 3
WITHIN_S = 30.0  # this machine may be busy
SEED = random.SystemRandom().randrange(2**32)
MOMENTS = random.Random(SEED)


@pytest.fixture(scope="module")
def running(stand: Stand) -> Iterator[Replicas]:
    with changing(stand, f"{stand.prefix}-lead"):
        made = Replicas(stand)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def replicas(running: Replicas) -> Iterator[Replicas]:
    """At the end of each test nobody has led beside another, and all led by the Lease."""
    print("seed", SEED)
    running.stand_by()
    yield running
    writes = running.writes()
    order = reigns(writes)
    assert len(order) == len(set(order)), order
    for agent in order:
        first = next(w for w in writes if w.agent == agent and w.code < 400)
        assert first.resource == "leases", f"{agent} wrote before it led"


def sometime() -> None:
    time.sleep(MOMENTS.uniform(0.0, 0.6))


def patch_lease(stand: Stand, **spec: object) -> None:
    stand.objects.patch("lease", names.OPERATOR_LEASE, {"spec": spec}, NAMESPACE)


def written(at: datetime.datetime) -> str:
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def holder(stand: Stand) -> str:
    lease = stand.find("lease", names.OPERATOR_LEASE, "-n", NAMESPACE) or {"spec": {}}
    return str(lease["spec"].get("holderIdentity"))


def done(writes: list[Write]) -> list[Write]:
    """But those of which only the head was on its way: the rest never came, and they failed."""
    return [write for write in writes if write.code < 400]


def ended(replica: Replica) -> str:
    assert replica.process.wait(WITHIN_S) == LOST
    return replica.process.tail(1000)


def test_a_killed_leader_is_followed(replicas: Replicas) -> None:
    sometime()
    replicas.leader.process.signal(signal.SIGKILL)
    before = replicas.succeed()
    assert before.process.code == -signal.SIGKILL


def test_a_leader_that_was_stopped_for_long_writes_nothing_more(replicas: Replicas) -> None:
    old = replicas.leader
    sometime()
    old.process.signal(signal.SIGSTOP)
    try:
        replicas.succeed()
        mark = replicas.stand.cluster.audit.end()
    finally:
        old.process.signal(signal.SIGCONT)
    ended(old)
    assert done(old.own(replicas.writes(mark))) == []


def test_a_leader_that_was_stopped_alone_ends_though_nobody_took_over(replicas: Replicas) -> None:
    old = replicas.leader
    replicas.standby.process.signal(signal.SIGSTOP)
    sometime()
    old.process.signal(signal.SIGSTOP)
    time.sleep(LEASE_S)
    mark = replicas.stand.cluster.audit.end()
    old.process.signal(signal.SIGCONT)
    ended(old)
    assert done(old.own(replicas.writes(mark))) == []
    replicas.standby.process.signal(signal.SIGCONT)
    replicas.succeed()


def test_a_leader_whose_network_is_gone_ends_in_time(replicas: Replicas, tmp_path: Path) -> None:
    stand = replicas.stand
    host, _, port = stand.cluster.url.removeprefix("https://").rpartition(":")
    relay = Relay(host, int(port))
    try:
        config = json.loads(stand.account_kubeconfig(names.OPERATOR_ACCOUNT).read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{relay.port}"
        path = tmp_path / "relayed.kubeconfig"
        path.write_text(json.dumps(config))
        # The one behind the relay stands by first, and leads when the others have gone in order.
        replicas.standby.process.stop()
        replicas.standby = replicas.start(path)
        replicas.stand_by()
        replicas.leader.process.stop()
        replicas.succeed()
        replicas.stand_by()
        sometime()
        relay.cut()
        cut = time.monotonic()
        text = ended(replicas.leader)
        print(f"ended {time.monotonic() - cut:.1f} s after the cut")
        assert "this process leads no more" in text
        assert not replicas.standby.leads, "it ended only after another led"
        replicas.succeed()
    finally:
        relay.close()


def test_a_deleted_lease_ends_the_leader(replicas: Replicas) -> None:
    replicas.stand.delete("lease", names.OPERATOR_LEASE, namespace=NAMESPACE)
    ended(replicas.leader)
    replicas.succeed()


def test_a_stolen_lease_ends_the_leader_and_the_thiefs_clock_does_not_matter(
    replicas: Replicas,
) -> None:
    """The thief renews by a clock that is an hour behind, then by one that is an hour ahead."""
    stand = replicas.stand
    now = datetime.datetime.now(datetime.UTC)
    hour = datetime.timedelta(hours=1)
    patch_lease(stand, holderIdentity="thief", renewTime=written(now - hour))
    assert "thief has it" in ended(replicas.leader)
    end = time.monotonic() + LEASE_S + 1
    while time.monotonic() < end:
        now += datetime.timedelta(seconds=1)
        patch_lease(stand, renewTime=written(now - hour))
        time.sleep(0.5)
        assert holder(stand) == "thief", "it was taken from one that renews"
    patch_lease(stand, renewTime=written(now + hour))
    replicas.succeed()


def test_a_leader_that_ends_in_order_hands_over_at_once(replicas: Replicas) -> None:
    sometime()
    old = replicas.leader
    assert old.process.stop() == 0, old.process.tail()
    assert "released the Lease" in old.process.tail(1000)
    wait_until(lambda: replicas.standby.leads, WITHIN_S, "the other to lead")
    writes = [w for w in replicas.writes() if w.resource == "leases" and w.code < 400]
    released = max(w.answered for w in old.own(writes))
    taken = min(w.received for w in replicas.standby.own(writes))
    gap = datetime.datetime.fromisoformat(taken) - datetime.datetime.fromisoformat(released)
    # Less than a Lease holds: it did not wait for it to run out.
    assert datetime.timedelta(0) <= gap < datetime.timedelta(seconds=LEASE_S)
    replicas.succeed()
