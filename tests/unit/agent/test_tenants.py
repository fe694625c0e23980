"""A tenant keeps within its limits over all its pods of a node; other tenants do not notice."""

from __future__ import annotations

from pathlib import Path

import pytest
from epfabric_agent.csi.permission import tenant
from epfabric_agent.kube.api import Api
from epfabric_agent.kube.pod_events import AGAIN_S, MOST, PodEvents
from epfabric_agent.pods import Pod
from epfabric_agent.session.quota import Quota, QuotaError
from epfabric_crds.settings import TenantLimits

HUGE = 1 << 40


def pod(name: str, tenant: str = "a", group: str = "g") -> Pod:
    return Pod(name, "ns", name, group, None, Path("/x"), uid=f"uid-{name}", tenant=tenant)


def quota(**limits: int | str) -> Quota:
    made = Quota(HUGE, HUGE)
    made.set_limits(HUGE, HUGE, [TenantLimits(name="a", **limits)])  # type: ignore[arg-type]
    return made


def test_sessions_of_a_tenant_are_counted_over_its_pods() -> None:
    had = quota(max_sessions=2)
    had.open_session(pod("p"))
    had.open_session(pod("q"))
    for other in (pod("r"), pod("p")):
        with pytest.raises(QuotaError, match=r"tenant a has 2 sessions.*may have 2") as refused:
            had.open_session(other)
        assert refused.value.code == "tenant"
    had.open_session(pod("s", tenant="b"))
    had.open_session(pod("t", tenant=""))
    had.close_session(pod("p"))
    had.open_session(pod("r"))


def test_groups_of_a_tenant_are_counted_while_they_have_sessions() -> None:
    had = quota(max_groups=1)
    had.open_session(pod("p", group="one"))
    had.open_session(pod("q", group="one"))
    with pytest.raises(QuotaError, match=r"1 groups on this node and may have 1"):
        had.open_session(pod("r", group="two"))
    had.close_session(pod("p", group="one"))
    with pytest.raises(QuotaError):
        had.open_session(pod("r", group="two"))
    had.close_session(pod("q", group="one"))
    had.open_session(pod("r", group="two"))


def test_memory_of_a_tenant_is_given_back() -> None:
    had = quota(max_memory="1Ki")
    first = had.grant(pod("p"), 1000)
    with pytest.raises(QuotaError, match=r"25 bytes more than the 1000 that the tenant a"):
        had.grant(pod("q"), 25)
    had.grant(pod("q"), 24)
    had.grant(pod("r", tenant="b"), 5000)
    had.release(first)
    had.grant(pod("q"), 1000)


def test_a_refused_session_and_a_lowered_limit_take_nothing() -> None:
    had = quota(max_sessions=1)
    had.open_session(pod("p"))
    with pytest.raises(QuotaError):
        had.open_session(pod("q"))
    had.set_limits(HUGE, HUGE, [])
    had.open_session(pod("q"))
    had.set_limits(HUGE, HUGE, [TenantLimits(name="a", max_sessions=1, max_inflight=3)])
    assert had.inflight(pod("p")) == 3
    assert had.inflight(pod("p", tenant="b")) is None
    had.close_session(pod("q"))
    with pytest.raises(QuotaError):
        had.open_session(pod("q"))


def test_the_first_tenant_that_selects_the_namespace_wins() -> None:
    def one(name: str, **labels: str) -> dict[str, object]:
        return {"name": name, "namespaceSelector": {"matchLabels": labels}}

    fabric = {"spec": {"tenants": [one("x", team="x"), one("y", big="yes"), one("rest")]}}
    for labels, expected in (
        ({"team": "x", "big": "yes"}, "x"),
        ({"team": "z", "big": "yes"}, "y"),
        ({}, "rest"),
    ):
        assert tenant(fabric, {"metadata": {"labels": labels}}) == expected
    assert tenant({"spec": {}}, {"metadata": {}}) == ""
    assert tenant({"spec": {"tenants": [one("x", team="x")]}}, {"metadata": {}}) == ""


def test_an_event_is_written_once_a_minute_for_each_pod_and_limit() -> None:
    now = [0.0]
    events = PodEvents(Api.__new__(Api), "node", lambda: now[0])

    def waiting() -> int:
        return events._waiting.qsize()

    for _ in range(3):
        events.refused(pod("p"), "tenant", "too much")
        events.refused(pod("p"), "rank", "its own mistake")
    assert waiting() == 1
    events.refused(pod("p"), "quota", "too much")
    events.refused(pod("q"), "tenant", "too much")
    assert waiting() == 3
    now[0] += AGAIN_S
    events.refused(pod("p"), "tenant", "too much")
    assert waiting() == 4
    for number in range(2 * MOST):
        events.refused(pod(f"p{number}"), "tenant", "too much")
    assert waiting() == MOST
