"""How often one connection may ask; a pure token bucket, used by session.conversation."""

from __future__ import annotations


class Rate:
    """At most `burst` at once and `per_s` in the long run."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._left = float(burst)
        self._at: float | None = None

    def take(self, now: float, count: int = 1) -> float:
        """Seconds to wait before this request, which counts for so many, may be served."""
        if self._at is not None:
            self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        self._left -= count
        return max(0.0, -self._left / self._per_s)
