"""Operator, agents and slots' driver use every right that the chart grants them, and lack none.

By what all tests of this folder made them do, as the API server's audit log tells it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from contract.conftest import operator_rights
from contract.real_agents import agent_rights
from contract.stand import NAMESPACE, NODES_NAMESPACE
from contract.test_slots import rights as slots_rights
from harness.cluster import Cluster
from harness.rights import granted, refused, unused

SIGNER = "signers.certificates.k8s.io epfabric.io/agent"
OPERATOR = f"{NAMESPACE}:epfabric-operator"
# What the API server asks for while it answers another request, which is what the log tells.
WITHIN = {
    # Who binds the policy to a fabric must be allowed to read it.
    f"{OPERATOR}: get epfabrics.epfabric.io": (
        f"{OPERATOR}: create mutatingadmissionpolicybindings.admissionregistration.k8s.io"
    ),
    f"{OPERATOR}: approve {SIGNER}": (
        f"{OPERATOR}: update certificatesigningrequests/approval.certificates.k8s.io"
    ),
    f"{OPERATOR}: sign {SIGNER}": (
        f"{OPERATOR}: update certificatesigningrequests/status.certificates.k8s.io"
    ),
}


def test_every_right_is_used_and_none_is_missing(
    request: pytest.FixtureRequest, api: Cluster
) -> None:
    files = set(Path(__file__).parent.glob("test_*.py"))
    if missing := files - {item.path for item in request.session.items}:
        names = ", ".join(sorted(path.name for path in missing))
        pytest.skip(f"looks at what the whole folder did; not chosen: {names}")
    objects = [*operator_rights(), *agent_rights("agents"), *slots_rights("slots")]
    rights = granted(objects)
    assert {right.account for right in rights} == {
        OPERATOR,
        f"{NODES_NAMESPACE}:epfabric-agent",
        f"{NODES_NAMESPACE}:epfabric-slots",
    }
    uses = api.audit.uses()
    assert refused(rights, uses) == set()
    assert unused(rights, uses, WITHIN) == (set(), set())
