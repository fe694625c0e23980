"""Whether a caller of our own HTTP paths may: by TokenReview and SubjectAccessReview.

Used by metrics_server.py. Answers are kept for a moment, those that refuse too, so that nobody
makes the API server work by asking us.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable

from epfabric_operator.kube import ApiError, Kube, Object

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
KEPT_S = 10.0
MOST_KEPT = 256
MOST_TOKEN = 16 << 10
MOST_ASKING = 4
ALLOWED, UNKNOWN, FORBIDDEN, BUSY = 200, 401, 403, 503


class Access:
    def __init__(self, kube: Kube, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`path` is asked of the API server as a non-resource URL, with the verb get."""
        self._kube = kube
        self._path = path
        self._clock = clock
        self._kept: dict[bytes, tuple[float, int]] = {}
        self._lock = threading.Lock()
        self._asking = threading.BoundedSemaphore(MOST_ASKING)

    def status(self, authorization: str | None) -> int:
        """HTTP status for a request with this header; BUSY where nobody can say."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not 0 < len(token) <= MOST_TOKEN:
            return UNKNOWN
        mark = hashlib.sha256(token.encode()).digest()
        now = self._clock()
        with self._lock:
            at, known = self._kept.get(mark, (float("-inf"), 0))
        if now - at < KEPT_S:
            return known
        if not self._asking.acquire(blocking=False):
            return BUSY
        try:
            answer = self._ask(token.strip())
        except ApiError:
            return BUSY
        finally:
            self._asking.release()
        with self._lock:
            self._kept = {k: v for k, v in self._kept.items() if now - v[0] < KEPT_S}
            if len(self._kept) < MOST_KEPT:
                self._kept[mark] = (now, answer)
        return answer

    def _ask(self, token: str) -> int:
        review = self._create(TOKEN_REVIEWS, "authentication", "TokenReview", {"token": token})
        if not review.get("authenticated"):
            return UNKNOWN
        user = review.get("user") or {}
        spec = {
            "user": user.get("username", ""),
            "uid": user.get("uid", ""),
            "groups": user.get("groups") or [],
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": self._path, "verb": "get"},
        }
        access = self._create(ACCESS_REVIEWS, "authorization", "SubjectAccessReview", spec)
        return ALLOWED if access.get("allowed") is True else FORBIDDEN

    def _create(self, path: str, group: str, kind: str, spec: Object) -> Object:
        body = {"apiVersion": f"{group}.k8s.io/v1", "kind": kind, "spec": spec}
        found: Object = self._kube.create(path, body).get("status") or {}
        return found
