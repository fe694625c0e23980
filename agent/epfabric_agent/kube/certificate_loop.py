"""Keeps the agent certified: the first certificate, then a new one at half life; for kube.mode."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from epfabric_agent.kube.api import Api, ApiError
from epfabric_agent.kube.certificate import obtain
from epfabric_agent.pki.identity import Credentials, NodeIdentity, PkiError, renew_at

SIGN_S = 30.0
RETRY_S = 2.0
RETRY_MOST_S = 60.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Clock:
    """How the loop tells time and waits."""

    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


def by_api(api: Api, namespace: str, identity: NodeIdentity) -> Callable[[], Credentials]:
    """Asks the operator for a certificate; blocks, with a bound."""
    return lambda: obtain(api, namespace, identity, SIGN_S)


class Certificates:
    def __init__(
        self, identity: NodeIdentity, ask: Callable[[], Credentials], clock: Clock | None = None
    ) -> None:
        """`ask` gets a new certificate; raises ApiError, PkiError, TimeoutError."""
        self._identity = identity
        self._ask = ask
        self._clock = clock or Clock()
        self._current: Credentials | None = None

    def current(self) -> Credentials:
        """What the agent shows to others now; asked from gRPC's threads too."""
        if self._current is None:
            raise PkiError("the agent has no certificate yet")
        return self._current

    async def first(self) -> None:
        """Returns when there is a certificate; tries for ever, with growing pauses."""
        pause_s = RETRY_S
        while True:
            try:
                self._current = await asyncio.to_thread(self._ask)
                _log.info("certified as %s", self._identity.dns_name)
                return
            except (ApiError, PkiError, TimeoutError) as error:
                _log.warning("no certificate yet: %s", error)
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MOST_S)

    async def keep(self) -> None:
        """Renews for ever. What is connected stays so; new connections show the new one."""
        while True:
            at = renew_at(self.current().certificate)
            left = at - self._clock.now()
            await self._clock.sleep(max(left.total_seconds(), RETRY_S))
            await self.first()
