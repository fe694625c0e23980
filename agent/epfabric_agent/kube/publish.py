"""Writes the node's status when it has changed; for kube.mode."""

from __future__ import annotations

import datetime

from epfabric_crds import EPFabricNodeStatus, names, to_dict
from epfabric_crds.meta import Condition
from epfabric_crds.node import AgentFacts

from epfabric_agent.kube import paths
from epfabric_agent.kube.api import Api
from epfabric_agent.kube.status import is_news, status_of
from epfabric_agent.runtime import Facts


class StatusWriter:
    """Remembers what was written, and to which object."""

    def __init__(self, api: Api, node: str, agent: AgentFacts) -> None:
        self._api = api
        self._node = node
        self._agent = agent
        self._uid = ""
        self._written: EPFabricNodeStatus | None = None

    def write(self, facts: Facts, uid: str, generation: int | None) -> bool:
        """Blocks for one call if there is something new. Raises ApiError; then nothing is kept."""
        if uid != self._uid:
            self._uid, self._written = uid, None
        old: tuple[Condition, ...] = self._written.conditions if self._written else ()
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = status_of(facts, self._agent, generation, old, now)
        if self._written and not is_news(status, self._written):
            return False
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "EPFabricNode",
            "metadata": {"name": self._node},
            "status": to_dict(status),
        }
        self._api.apply(paths.node_status(self._node), body, names.AGENT_MANAGER)
        self._written = status
        return True
