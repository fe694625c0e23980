"""One operator at a time, by a Lease; used by main.py, which exits when the Lease is lost.

A candidate takes the Lease when it is free or when it has not seen it change for its duration, by
its own clock. A leader that could not renew within the deadline, which is shorter, stops first.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from epfabric_crds import names

from epfabric_operator import paths
from epfabric_operator.kube import ApiError, Kube, Object

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Terms:
    duration_s: float = 15
    deadline_s: float = 10
    retry_s: float = 2


class Election:
    def __init__(
        self,
        kube: Kube,
        namespace: str,
        identity: str,
        terms: Terms | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._leases = paths.leases(namespace)
        self._identity = identity
        self.terms = terms or Terms()
        self._clock = clock
        self._seen: tuple[object, float] = (None, 0.0)

    def acquire(self, stop: threading.Event) -> bool:
        """Wait for the Lease. False when stopped first."""
        told = None
        while not stop.is_set():
            try:
                holder = self.try_once()
            except ApiError as error:
                holder = f"nobody knows: {error}"
            if holder is None:
                log.info("leading as %s", self._identity)
                return True
            if holder != told:
                log.info("waiting for the Lease, held by %s", holder)
                told = holder
            stop.wait(self.terms.retry_s)
        return False

    def keep(self, stop: threading.Event) -> bool:
        """Renew until stopped (True) or lost (False)."""
        renewed = self._clock()
        while not stop.wait(self.terms.retry_s):
            try:
                holder = self.try_once()
                if holder is not None:
                    log.error("lost the Lease to %s", holder)
                    return False
                renewed = self._clock()
            except ApiError as error:
                log.warning("could not renew the Lease: %s", error)
                if self._clock() - renewed > self.terms.deadline_s:
                    log.error("lost the Lease: not renewed for %s s", self.terms.deadline_s)
                    return False
        return True

    def release(self) -> None:
        """Let the next one start at once."""
        try:
            lease = self._kube.get(f"{self._leases}/{names.OPERATOR_LEASE}")
            if lease and lease["spec"].get("holderIdentity") == self._identity:
                lease["spec"] = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                self._kube.replace(f"{self._leases}/{names.OPERATOR_LEASE}", lease)
        except ApiError as error:
            log.warning("could not release the Lease: %s", error)

    def try_once(self) -> str | None:
        """Take or renew the Lease; None when it is ours, else who has it. Raises ApiError."""
        lease = self._kube.get(f"{self._leases}/{names.OPERATOR_LEASE}")
        try:
            if lease is None:
                self._kube.create(self._leases, self._body(None))
                return None
            spec = lease.get("spec") or {}
            holder = spec.get("holderIdentity") or ""
            if holder and holder != self._identity and not self._expired(spec):
                return str(holder)
            self._kube.replace(f"{self._leases}/{names.OPERATOR_LEASE}", self._body(lease))
            return None
        except ApiError as error:
            if error.status == 409:
                return "another, just now"
            raise

    def _expired(self, spec: Object) -> bool:
        mark = (spec.get("holderIdentity"), spec.get("renewTime"))
        if mark != self._seen[0]:
            self._seen = (mark, self._clock())
        return self._clock() - self._seen[1] > self.terms.duration_s

    def _body(self, lease: Object | None) -> Object:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
        now = now.replace("+00:00", "Z")
        spec = dict((lease or {}).get("spec") or {})
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = spec.get("leaseTransitions", -1) + 1
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self.terms.duration_s),
            "renewTime": now,
        }
        metadata = (lease or {}).get("metadata") or {"name": names.OPERATOR_LEASE}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }
