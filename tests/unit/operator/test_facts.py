"""Labels that tell what a node has: what is said, what is taken away, and no write without news."""

from __future__ import annotations

import re
from typing import Any

from epfabric_crds import names
from epfabric_operator.facts import fact_labels
from epfabric_operator.plan import plan
from epfabric_operator.world import World
from unit.operator.builders import CONFIG, NOW, epnode, fabric, node

VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def nic(name: str, rail: int | None, driver: str = "mlx5_core") -> dict[str, Any]:
    return {"name": name, "driver": driver, **({} if rail is None else {"rail": rail})}


def status(*nics: dict[str, Any], provider: str = "tcp;ofi_rxm") -> dict[str, Any]:
    return {
        "transport": {"type": "libfabric", "provider": provider},
        "topology": {"nics": list(nics), "gpus": [{"uuid": "GPU-1"}]},
    }


def test_a_nodes_labels_are_what_its_agent_found() -> None:
    found = fact_labels(epnode("a", **status(nic("e0", 0), nic("e1", 1), nic("m", None, "igb"))))
    assert found == {
        names.TRANSPORT_LABEL: "libfabric-tcp-ofi_rxm",
        names.RAILS_LABEL: "2",
        names.GPUS_LABEL: "1",
        names.NIC_LABEL: "mlx5_core",
    }
    mixed = fact_labels(epnode("a", **status(nic("e0", 0), nic("e1", 1, "irdma"))))
    assert mixed[names.NIC_LABEL] == "mixed"


def test_every_value_is_a_labels_value() -> None:
    for provider in (";;", "x" * 200, "ä/ö", "-.-"):
        found = fact_labels(epnode("a", **status(nic("e", 0, ";x;"), provider=provider)))
        assert all(VALUE.fullmatch(value) for value in found.values() if value), found


def test_labels_follow_the_agent_and_go_with_the_fabric() -> None:
    labels = {"of": "moe", "pool": "moe", names.RAILS_LABEL: "8", "other": "stays"}
    world = World(
        fabrics={"moe": fabric()},
        nodes={"a": node("a", **labels)},
        epnodes={"a": epnode("a", **status(nic("e0", 0)))},
    )
    (change,) = plan("moe", world, CONFIG, NOW).relabel
    assert change.labels[names.RAILS_LABEL] == "1"
    assert set(change.labels) <= set(names.FACT_LABELS)
    left = World(nodes={"a": node("a", **labels)})
    (change,) = plan("moe", left, CONFIG, NOW).relabel
    assert change.labels == {names.FABRIC_LABEL: None, names.RAILS_LABEL: None}


def test_a_node_that_says_nothing_new_is_not_written() -> None:
    said = status(nic("e0", 0))
    labels = {k: v for k, v in fact_labels(epnode("a", **said)).items() if v is not None}
    world = World(
        fabrics={"moe": fabric()},
        nodes={"a": node("a", of="moe", pool="moe", **labels)},
        epnodes={"a": epnode("a", **said)},
    )
    assert plan("moe", world, CONFIG, NOW).relabel == ()
