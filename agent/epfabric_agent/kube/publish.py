"""Writes the node's status when it has changed; for kube.mode."""

from __future__ import annotations

import datetime
import logging

from epfabric_crds import EPFabricNodeStatus, names, to_dict
from epfabric_crds.meta import Condition
from epfabric_crds.node import AgentFacts

from epfabric_agent.kube import paths
from epfabric_agent.kube.api import Api, ApiError
from epfabric_agent.kube.status import is_news, status_of
from epfabric_agent.runtime import Facts

UNDECLARED = "field not declared in schema"
"""The API server's words for a field of an apply that the CRD lacks; it refuses the whole apply."""
_log = logging.getLogger(__name__)


class StatusWriter:
    """Remembers what was written, and to which object."""

    def __init__(self, api: Api, node: str, agent: AgentFacts) -> None:
        self._api = api
        self._node = node
        self._agent = agent
        self._uid = ""
        self._written: EPFabricNodeStatus | None = None
        self._told = False  # that the CRDs are old

    def write(self, facts: Facts, uid: str, generation: int | None) -> bool:
        """Blocks for one call if there is something new. Raises ApiError; then nothing is kept.
        Of CRDs that are too old it tells once."""
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
        try:
            self._api.apply(paths.node_status(self._node), body, names.AGENT_MANAGER)
        except ApiError as error:
            if UNDECLARED not in str(error):
                raise
            if not self._told:
                _log.error(
                    "this node's status is not written while the cluster's CRDs are older than its "
                    "agent: upgrade the chart with its hooks, or apply the CRDs of the agent's "
                    "version (%s)",
                    error,
                )
            self._told = True
            return False
        self._written, self._told = status, False
        return True
