"""An EPFabricNode's status from what the agent knows: pure; written by kube.publish."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib import metadata

from epfabric import messages
from epfabric.versions import Span
from epfabric_crds import EPFabricNodeStatus
from epfabric_crds.meta import Condition, ConditionStatus, keep_transition
from epfabric_crds.node import AgentFacts, ChosenTransport, ProxyPlace

from epfabric_agent.nic.room import as_noted
from epfabric_agent.peers.versions import SPOKEN
from epfabric_agent.runtime import Facts

MAX_PROXIES = 64
MAX_GROUPS = 256
MAX_PEER_MEMORY = 64
MAX_NICS = 64
MAX_TEXT = 500


def facts_of_agent(pod_uid: str) -> AgentFacts:
    return AgentFacts(
        pod_uid=pod_uid or None,
        version=metadata.version("epfabric-agent"),
        abi=_text(messages.SPOKEN),
        peers=_text(SPOKEN),
    )


def _text(span: Span) -> str:
    return str(span.newest) if span.oldest == span.newest else f"{span.oldest}-{span.newest}"


def status_of(
    facts: Facts, agent: AgentFacts, generation: int | None, old: Iterable[Condition], now: str
) -> EPFabricNodeStatus:
    """`generation` of the settings that are served; `now` in RFC 3339."""
    choice, numa_of = facts.choice, facts.inventory.cpus.numa_of
    before = tuple(old)
    conditions = (keep_transition(c, before) for c in _conditions(facts, generation, now))
    return EPFabricNodeStatus(
        observed_generation=generation,
        endpoint=facts.endpoint or None,
        transport=ChosenTransport(
            type=choice.type or None,
            provider=choice.provider or None,
            reason=choice.reason[:MAX_TEXT],
        ),
        topology=facts.inventory.topology,
        capabilities=("host-memory", "signals", "barrier-leader"),
        proxies=tuple(
            ProxyPlace(session=session, index=index, cpu=cpu, numa_node=numa_of.get(cpu, -1))
            for session, index, cpu in facts.places[:MAX_PROXIES]
        ),
        nics=facts.nics.nics,
        nic_room=facts.nic_room[:MAX_NICS],
        sessions=facts.sessions,
        groups=facts.groups[:MAX_GROUPS],
        peer_memory=facts.peer_memory[:MAX_PEER_MEMORY],
        agent=agent,
        conditions=tuple(conditions),
    )


def is_news(status: EPFabricNodeStatus, written: EPFabricNodeStatus) -> bool:
    """Other times, and counts of NICs that are close to those written, need not be written."""
    noted = as_noted(status.nic_room, written.nic_room)
    return _without_times(replace(status, nic_room=noted)) != _without_times(written)


def _without_times(status: EPFabricNodeStatus) -> EPFabricNodeStatus:
    return replace(
        status, conditions=tuple(replace(c, last_transition_time="") for c in status.conditions)
    )


def _conditions(facts: Facts, generation: int | None, now: str) -> list[Condition]:
    def condition(kind: str, holds: bool, reason: str, message: str) -> Condition:
        status: ConditionStatus = "True" if holds else "False"
        return Condition(
            type=kind,
            status=status,
            reason=reason,
            message=message[:MAX_TEXT],
            last_transition_time=now,
            observed_generation=generation,
        )

    choice = facts.choice
    if not facts.endpoint:
        ready = condition(
            "TransportReady", False, "NoCertificate", "waits for its certificate from the operator"
        )
    elif not choice.usable:
        ready = condition("TransportReady", False, "NoTransport", choice.reason)
    else:
        ready = condition("TransportReady", True, "Chosen", f"{choice.type}: {choice.reason}")
    constrained = condition("CPUConstrained", False, "EnoughCPUs", "each proxy has its own CPU")
    if facts.constrained:
        text = (
            f"of CPUs {facts.inventory.cpus.text()} too few are free: sessions got fewer proxies, "
            "or share a CPU; give the agent's pod more CPUs or lower spec.proxies.perGPU"
        )
        constrained = condition("CPUConstrained", True, "TooFewCPUs", text)
    local = condition("ProxiesLocal", True, "Local", "proxies are near their memory")
    if not facts.local:
        text = "some proxies run on another NUMA node than the one with their session's memory"
        local = condition("ProxiesLocal", False, "Remote", text)
    degraded = condition("Degraded", False, "AsWanted", "the node serves as its spec says")
    if facts.behind:
        degraded = condition("Degraded", True, "SettingsWait", facts.behind)
    nics = facts.nics
    configured = condition("NICsConfigured", nics.holds, nics.reason, nics.message)
    return [ready, constrained, local, configured, degraded]
