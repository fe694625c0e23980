"""Labels of a Node that tell what its agent found there; pure, used by the planner.

For node selectors and affinity of people's own pods. All begin with epfabric.io/ and go when the
node leaves its fabric.
"""

from __future__ import annotations

import re

from epfabric_crds import EPFabricNode, names

_NO_LABEL = re.compile(r"[^A-Za-z0-9._-]+")
_MOST = 63
MIXED = "mixed"


def fact_labels(epnode: EPFabricNode | None) -> dict[str, str | None]:
    """None for what the agent does not say (yet): such a label is taken away."""
    found: dict[str, str | None] = dict.fromkeys(names.FACT_LABELS)
    if epnode is None:
        return found
    status = epnode.status
    if status.transport is not None and status.transport.type:
        parts = filter(None, (status.transport.type, status.transport.provider))
        found[names.TRANSPORT_LABEL] = _value("-".join(parts))
    if status.topology is not None:
        rails = [nic for nic in status.topology.nics if nic.rail is not None]
        found[names.RAILS_LABEL] = str(len(rails))
        found[names.GPUS_LABEL] = str(len(status.topology.gpus))
        drivers = {nic.driver for nic in rails if nic.driver}
        if drivers:
            found[names.NIC_LABEL] = _value(drivers.pop() if len(drivers) == 1 else MIXED)
    return found


def _value(text: str) -> str:
    """Only what a label's value may hold, with a letter or digit at both ends."""
    return _NO_LABEL.sub("-", text)[:_MOST].strip("-._")
