"""Runs all families and prints what they found; used by main.py."""

from __future__ import annotations

import argparse
import dataclasses
import textwrap
from types import ModuleType

from epfabric_operator.cli import output
from epfabric_operator.cli.cluster import Cluster
from epfabric_operator.cli.doctor import (
    agents,
    atomics,
    barriers,
    certificates,
    cpu,
    installation,
    network,
    pods,
)
from epfabric_operator.cli.doctor.facts import Facts, Finding, read
from epfabric_operator.cli.fault import FINE, FOUND

FAMILIES: tuple[ModuleType, ...] = (
    *(installation, agents, certificates, pods),
    *(barriers, network, atomics, cpu),
)
ORDER = ("error", "warning", "info")


def run(cluster: Cluster, options: argparse.Namespace) -> int:
    facts = read(cluster)
    found = examine(facts)
    if options.output == "json":
        output.show_json(
            {"findings": [dataclasses.asdict(one) for one in found], "unseen": facts.unseen}
        )
    else:
        print(text(facts, found))
    return FOUND if any(one.severity == "error" for one in found) else FINE


def examine(facts: Facts) -> list[Finding]:
    """The worst first."""
    found = [finding for family in FAMILIES for finding in family.check(facts)]
    return sorted(found, key=lambda one: (ORDER.index(one.severity), one.check, one.subject))


def text(facts: Facts, found: list[Finding]) -> str:
    parts = []
    for one in found:
        lines = [f"{one.severity.upper()}  {one.check}  {one.subject}"]
        for head, said in (("seen", one.seen), ("why", one.why), ("do", one.todo)):
            wrapped = textwrap.wrap(said, 92) or [""]
            lines += [f"  {head:<5} {wrapped[0]}", *(f"        {rest}" for rest in wrapped[1:])]
        parts.append("\n".join(lines))
    counts = ", ".join(
        f"{sum(1 for one in found if one.severity == severity)} {severity}" for severity in ORDER
    )
    looked = (
        f"looked at {len(facts.fabrics)} fabrics, {len(facts.epnodes)} nodes, "
        f"{len(facts.groups)} groups: {counts}"
    )
    unseen = [f"not looked at: {one}" for one in facts.unseen]
    return "\n".join([*("\n\n".join(parts), "") * bool(parts), *unseen, looked])
