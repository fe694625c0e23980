"""Atomics that no group can have: asked of hardware that has none, or of more than one of it."""

from __future__ import annotations

from collections.abc import Iterator

from epfabric_operator.cli.doctor.facts import Facts, Finding, some
from epfabric_operator.cli.doctor.network import is_efa, nics

EMULATE = "set spec.atomics: auto (or emulated): then the owner's agent applies every one of them"


def check(facts: Facts) -> Iterator[Finding]:
    for fabric in facts.fabrics:
        if fabric.spec.atomics != "hardware":
            continue
        nodes = [n for n in facts.epnodes if n.spec.fabric == fabric.metadata.name]
        without = [n.metadata.name for n in nodes if is_efa(n) or not nics(n)]
        if without:
            yield Finding(
                "error",
                "no-atomics",
                fabric.metadata.name,
                f"atomics is hardware, but these nodes' NICs apply none: {some(without)}",
                "groups with ranks there are refused",
                EMULATE,
            )
        several = [n.metadata.name for n in nodes if len(nics(n)) > 1]
        if several and fabric.spec.proxies.per_gpu > 1:
            yield Finding(
                "error",
                "no-atomics",
                fabric.metadata.name,
                f"atomics is hardware, but a GPU's proxies use several NICs on {some(several)}",
                "one NIC's atomic is none against another's, so groups there are refused",
                EMULATE + ", or choose one NIC by spec.nics.selector",
            )
