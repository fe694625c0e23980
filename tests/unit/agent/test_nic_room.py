"""What a node's status shows of its NICs' room, and that sessions do not write it anew."""

from __future__ import annotations

from typing import Any, cast

from epfabric_agent.kube.api import Api
from epfabric_agent.kube.publish import StatusWriter
from epfabric_agent.nic.report import NicReport
from epfabric_agent.nic.room import rooms
from epfabric_agent.runtime import Facts
from epfabric_agent.topology.cpus import Cpus
from epfabric_agent.topology.discover import Inventory
from epfabric_agent.topology.transport import Choice
from epfabric_crds.definitions import problems
from epfabric_crds.node import AgentFacts, NicRoom, Topology

Object = dict[str, Any]


def room(pairs: int, registrations: int = 20, limit: int = 1000) -> tuple[NicRoom, ...]:
    limits = {"max_qp": limit, "max_mr": 0, "max_cq": 7}
    return rooms({"m0": (limits, {"max_qp": pairs, "max_mr": registrations, "max_cq": 1})})


def facts(nic_room: tuple[NicRoom, ...], sessions: int = 1) -> Facts:
    inventory = Inventory(Cpus((), {}), Topology(), ())
    choice = Choice("verbs", "verbs", "chosen")
    return Facts(
        "10.0.0.1:7470",
        choice,
        inventory,
        sessions,
        places=(),
        constrained=False,
        local=True,
        behind="",
        nics=NicReport(),
        nic_room=nic_room,
    )


class Written:
    """The statuses that reach the API server."""

    def __init__(self) -> None:
        self.bodies: list[Object] = []
        self._writer = StatusWriter(cast(Api, self), "n", AgentFacts())

    def apply(self, _path: str, body: Object, _manager: str) -> None:
        self.bodies.append(body)

    def write(self, what: Facts) -> bool:
        return self._writer.write(what, "uid", 1)

    @property
    def used(self) -> int:
        count: int = self.bodies[-1]["status"]["nicRoom"][0]["queuePairs"]["used"]
        return count


def test_a_status_is_not_written_for_each_session_s_queue_pairs() -> None:
    written = Written()
    assert written.write(facts(room(300)))
    for pairs in (301, 399, 201, 300):
        assert not written.write(facts(room(pairs, registrations=pairs)))
    assert written.write(facts(room(400)))
    assert written.used == 400
    assert not written.write(facts(room(301)))
    assert written.write(facts(room(301), sessions=2))  # by the way
    assert written.used == 301
    assert written.write(facts(room(301, limit=900)))
    assert written.write(facts(()))
    assert len(written.bodies) == 5


def test_a_device_that_tells_no_limit_has_none_in_a_valid_status() -> None:
    written = Written()
    written.write(facts(room(4)))
    body = written.bodies[0]
    assert body["status"]["nicRoom"] == [
        {"device": "m0", "queuePairs": {"used": 4, "limit": 1000}, "registrations": {"used": 20}}
    ]
    spec = {"fabric": "f", "nodeUid": "u"}
    assert problems("EPFabricNode", {"spec": spec, "status": body["status"]}) == []
