"""What a conversation with a pod needs of its agent; made by the agent, used by session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from epfabric_crds import Settings

from epfabric_agent.groups.hub import Hub
from epfabric_agent.session.gpus import Gpus
from epfabric_agent.session.nic_turns import NicTurns
from epfabric_agent.session.proxy_cpus import ProxyCpus
from epfabric_agent.session.quota import Quota
from epfabric_agent.session.room import Room
from epfabric_agent.topology.transport import Port

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
    room: Room
    cpus: ProxyCpus
    changed: Callable[[], None]
    nics: NicTurns
    ports: tuple[Port, ...] = ()
    """Of the core, where a session may have an order of its own: all of them reach each other."""
    lines: int = 0
    """NICs over which each proxy's verbs links go; 0: verbs is not what moves data."""
    spares: int = 0
    """NICs that stand by for those."""
    pins: bool = False
    """Whether NICs pin what proxies make."""
    cordon: str = ""  # why no session of a group that is not here yet is admitted


class Current(Protocol):
    """Where a hello gets the services that are right when it is served."""

    @property
    def hub(self) -> Hub: ...

    @property
    def serving(self) -> bool:
        """Whether a connection is worth being accepted."""

    @property
    def cpus(self) -> ProxyCpus: ...

    @property
    def gpus(self) -> Gpus: ...

    async def services(self) -> Services:
        """Waits while the core is being replaced; else returns at once, without a pause.

        Raises Unserved.
        """


class Unserved(Exception):
    """The agent serves no sessions; the text says why."""
