"""Atomics that get lost: asked of hardware that does not have them, or of more than one of it."""

from __future__ import annotations

from collections.abc import Iterator

from epfabric_operator.cli.doctor.facts import Facts, Finding, some
from epfabric_operator.cli.doctor.network import is_efa, nics

EMULATE = "set spec.atomics: emulated (or auto): then the owner's agent applies every one of them"


def check(facts: Facts) -> Iterator[Finding]:
    for fabric in facts.fabrics:
        if fabric.spec.atomics != "hardware":
            continue
        nodes = [n for n in facts.epnodes if n.spec.fabric == fabric.metadata.name]
        without = [n.metadata.name for n in nodes if is_efa(n) or not nics(n)]
        if without:
            yield Finding(
                "error",
                "lost-atomics",
                fabric.metadata.name,
                f"atomics is hardware, but these nodes' NICs add nothing: {some(without)}",
                "such a NIC compares and swaps at most: additions of others are overwritten",
                EMULATE,
            )
        striped = [n.metadata.name for n in nodes if len(nics(n)) > 1]
        if striped and fabric.spec.high_throughput.nics_per_gpu > 1:
            yield Finding(
                "error",
                "lost-atomics",
                fabric.metadata.name,
                f"atomics is hardware while writes use several NICs a GPU on {some(striped)}",
                "one NIC's atomic is not atomic against another's: updates get lost",
                EMULATE,
            )
