"""One operator at a time, by a Lease; used by main.py, which exits when the Lease is lost.

A candidate takes the Lease when its holder released it, or when it has not seen it change for its
duration; one that was deleted or emptied by hand is waited out too, since its holder may not know
yet. Times are this process's own; those that stand in the Lease are for people.
"""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Callable

from epfabric_crds import names

from epfabric_operator import paths
from epfabric_operator.kube import ApiError, Kube, Object
from epfabric_operator.tenure import Tenure, Terms, clock_s

log = logging.getLogger(__name__)
RELEASED_S = 1  # the duration of a Lease that its holder released
LONGEST_S = 300
"""No Lease holds longer, whatever it says: one that was written by hand must not hold for ever."""


class Election:
    def __init__(
        self,
        kube: Kube,
        namespace: str,
        identity: str,
        terms: Terms,
        tenure: Tenure,
        clock: Callable[[], float] = clock_s,
    ) -> None:
        """`kube` is not fenced by the tenure, and its requests take at most `terms.request_s`."""
        self._kube = kube
        self._leases = paths.leases(namespace)
        self._path = f"{self._leases}/{names.OPERATOR_LEASE}"
        self._identity = identity
        self._terms = terms
        self._tenure = tenure
        self._clock = clock
        # Holder and renewal as last seen, when that was new, and for how long it counts.
        self._seen: tuple[object, float, float] = (None, float("-inf"), 0.0)

    def acquire(self, stop: threading.Event) -> bool:
        """Wait for the Lease. False when stopped first."""
        told = None
        while not stop.is_set():
            try:
                holder = self.take()
            except ApiError as error:
                holder = f"nobody knows: {error}"
            if holder is None:
                log.info("leading as %s", self._identity)
                return True
            if holder != told:
                log.info("waiting for the Lease, held by %s", holder)
                told = holder
            stop.wait(self._terms.retry_s)
        return False

    def keep(self, stop: threading.Event) -> None:
        """Renew until stopped or lost."""
        while not stop.wait(self._terms.retry_s):
            if self._tenure.left_s() <= 0:
                return  # it came too late for another try
            try:
                lost = self.renew()
            except ApiError as error:
                log.warning("could not renew the Lease: %s", error)
                continue
            if lost:
                log.error("lost the Lease: %s", lost)
                self._tenure.end()
                return

    def release(self) -> None:
        """Let the next one start at once. Only when nothing of this process acts any more."""
        try:
            lease = self._kube.get(self._path)
            if lease and lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] = {**lease["spec"], "holderIdentity": ""}
                lease["spec"]["leaseDurationSeconds"] = RELEASED_S
                self._kube.replace(self._path, lease)
                log.info("released the Lease")
        except ApiError as error:
            log.warning("could not release the Lease: %s", error)

    def take(self) -> str | None:
        """Take the Lease if it may be taken; None then, else who has it. Raises ApiError."""
        asked = self._clock()
        lease = self._kube.get(self._path)
        spec = (lease or {}).get("spec") or {}
        if not self._free(spec):
            return spec.get("holderIdentity") or "nobody, but not released either"
        try:
            if lease is None:
                self._kube.create(self._leases, self._body(None))
            else:
                self._kube.replace(self._path, self._body(lease))
        except ApiError as error:
            if error.status == 409:
                # If it is gone at the next look, whoever has it now may not know yet.
                self._seen = ("another", self._clock(), LONGEST_S)
                return "another, just now"
            raise
        self._tenure.renew(asked)
        return None

    def renew(self) -> str | None:
        """Renew the Lease; None, or how it was lost. Raises ApiError where another try may help."""
        asked = self._clock()
        lease = self._kube.get(self._path)
        if lease is None:
            # Another may have made and lost one meanwhile: it is not simply made again.
            return "it was deleted"
        holder = (lease.get("spec") or {}).get("holderIdentity") or "nobody"
        if holder != self._identity:
            return f"{holder} has it"
        self._kube.replace(self._path, self._body(lease))
        self._tenure.renew(asked)
        return None

    def _free(self, spec: Object) -> bool:
        holder = spec.get("holderIdentity")
        declared = int(spec.get("leaseDurationSeconds") or 0)
        mark = (holder, spec.get("renewTime")) if spec else None
        seen, since, counts_s = self._seen
        if mark != seen:
            since = self._clock()
            if mark:
                counts_s = max(self._terms.duration_s, min(declared, LONGEST_S))
            self._seen = (mark, since, counts_s)
        released = not holder and declared == RELEASED_S
        return released or self._clock() - since > counts_s

    def _body(self, lease: Object | None) -> Object:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
        now = now.replace("+00:00", "Z")
        spec = dict((lease or {}).get("spec") or {})
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = spec.get("leaseTransitions", -1) + 1
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._terms.duration_s,
            "renewTime": now,
        }
        metadata = (lease or {}).get("metadata") or {"name": names.OPERATOR_LEASE}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }
