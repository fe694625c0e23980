"""What of a fabric's settings reaches the native core."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from epfabric_agent.core_edge import CoreEdge, core_settings
from epfabric_agent.groups.hub import Hub
from epfabric_agent.topology.transport import EFA, TCP, Choice
from epfabric_crds.settings import HighThroughput, Settings

PORTS = (("mlx5_0", 1, "10.0.0.1"), ("mlx5_1", 1, "10.0.1.1"))


def test_nics_per_gpu_is_told_also_where_a_node_has_one_port() -> None:
    """The ends of a link have to speak alike, however many ports each of them has."""
    striped = HighThroughput(nics_per_gpu=2, qp_selection="roundRobin")
    for ports in (PORTS, PORTS[:1]):
        made = core_settings(
            replace(Settings(), high_throughput=striped), Choice("verbs", "", "", ports)
        )
        assert (made.ports, made.nics_per_gpu, made.qp_selection) == (ports, 2, "roundRobin")


def test_one_nic_per_gpu_is_what_a_fabric_has_by_default() -> None:
    assert core_settings(Settings(), Choice("verbs", "", "", PORTS)).nics_per_gpu == 1


def test_only_verbs_has_lines_and_every_nic_pins() -> None:
    async def nobody() -> None:
        raise AssertionError

    edge = CoreEdge("127.0.0.1", cast(Hub, None), nobody)
    striped = replace(Settings(), high_throughput=HighThroughput(nics_per_gpu=2))
    for settings, provider, ports, expected in (
        (striped, "", PORTS, (2, 0, True)),
        (Settings(), "", PORTS, (1, 1, True)),
        (striped, EFA, PORTS, (0, 0, True)),
        (Settings(), EFA, PORTS, (0, 0, True)),
        (striped, TCP, (), (0, 0, False)),
    ):
        edge.settings = core_settings(settings, Choice("", provider, "", ports))
        assert (edge.lines, edge.spares, edge.pins) == expected
