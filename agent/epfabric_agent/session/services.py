"""What a conversation with a pod needs of its agent; made by the agent, used by session."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from epfabric_crds import Settings

from epfabric_agent.groups.hub import Hub
from epfabric_agent.session.quota import Quota
from epfabric_agent.topology.cpus import CpuLedger, Cpus

if TYPE_CHECKING:
    from epfabric_agent._native import Core


@dataclass(frozen=True)
class Services:
    """One agent's services with one core and one state of its settings."""

    node: str
    fabric: str
    core: Core
    settings: Settings
    hub: Hub
    quota: Quota
    ledger: CpuLedger
    cpus: Callable[[], Cpus]
    changed: Callable[[], None]
    samples: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
