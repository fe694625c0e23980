"""A cordoned node serves the groups that it has and admits no other, whoever cordoned it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract.real_agents import Site, listens, publish, running_site
from contract.stand import Stand
from epfabric_crds import names
from harness.process import Process, wait_until

NODE_S = 60.0


@pytest.fixture(scope="module")
def site(stand: Stand, operator: Process) -> Iterator[Site]:
    with running_site(stand, f"{stand.prefix}-cordon", 1) as made:
        yield made


def annotate(site: Site, node: str, value: str) -> None:
    site.stand.cluster.kubectl("annotate", "node", node, f"{names.CORDON_ANNOTATION}{value}")


def agent_knows(site: Site, node: str, cordoned: bool) -> bool:
    epnode = site.stand.find("epfn", node)
    seen = epnode.get("status", {}).get("observedGeneration")
    return (
        bool(epnode["spec"].get("cordon")) is cordoned and seen == epnode["metadata"]["generation"]
    )


def start(site: Site, node: str, group: str, rank: int, world: int, *more: str) -> Process:
    place = publish(site, node, group, rank)
    wait_until(lambda: listens(place), NODE_S, "the pod's socket", site.agents[node])
    return site.rank(place, group, rank, world, *more)


def test_an_administrators_cordon_refuses_new_groups_until_it_goes(site: Site) -> None:
    (node,) = site.agents
    first = start(site, node, "here", 0, 2)
    groups = [f"{site.space}/here"]
    listed = lambda: site.stand.find("epfn", node).get("status", {}).get("groups") == groups  # noqa: E731
    site.stand.eventually(listed, "the group to be in status", site.agents[node], first)
    annotate(site, node, "=the rack is being moved")
    site.stand.eventually(lambda: agent_knows(site, node, True), "the cordon", site.agents[node])

    refused = start(site, node, "other", 0, 1, "--timeout-s=2")
    assert refused.wait(NODE_S) == 1
    for word in ("admits no new group", names.CORDON_ANNOTATION, "the rack is being moved"):
        assert word in refused.log.read_text()

    waiting = start(site, node, "patient", 0, 1)
    second = start(site, node, "here", 1, 2)
    for process in (first, second):
        assert process.wait(NODE_S) == 0, process.tail()
    site.stand.eventually(lambda: agent_knows(site, node, True), "still", site.agents[node])
    assert not waiting.ended.is_set()
    annotate(site, node, "-")
    assert waiting.wait(NODE_S) == 0, waiting.tail()
    site.stand.eventually(lambda: agent_knows(site, node, False), "its end", site.agents[node])


def test_the_agent_says_which_it_is(site: Site) -> None:
    (node,) = site.agents
    agent = site.stand.find("epfn", node)["status"]["agent"]
    assert agent == {"version": "0.1.0", "abi": "1", "peers": "1"}
