"""What a fabric's status says of an update, added to the rest; pure, called by reconcile.py."""

from __future__ import annotations

from dataclasses import replace

from epfabric_crds import EPFabric, EPFabricStatus
from epfabric_crds.meta import keep_transition

from epfabric_operator.conditions import Verdict
from epfabric_operator.update import PENDING, Update


def with_update(
    fabric: EPFabric, status: EPFabricStatus, update: Update, now: str
) -> EPFabricStatus:
    """`status` with UpdatePending; a stopped update degrades, one that goes on reconciles."""
    told = {PENDING: update.summary}
    if update.stopped:
        told["Degraded"] = Verdict("True", "UpdateStopped", update.stopped)
    elif update.summary.reason == "Replacing":
        told["Reconciling"] = Verdict("True", "Updating", update.summary.message)
    generation, old = fabric.metadata.generation, fabric.status.conditions
    new = {t: keep_transition(v.at(t, now, generation), old) for t, v in told.items()}
    kept = (new.pop(c.type, c) for c in status.conditions)
    return replace(status, conditions=(*kept, *new.values()))
