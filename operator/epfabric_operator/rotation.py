"""When the agents' authority is replaced by another; pure, called by signer.py.

One signs. Well before it ends another is made and published beside it. When every agent must have
read both, since no certificate from before is valid any more, the new one signs; when the last
certificate of the old one has ended, that is dropped. So each agent trusts every other all along.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, replace

from cryptography import x509
from epfabric_crds import names

from epfabric_operator.authority import CLOCK_SKEW, Authority, make_authority

OVERLAP = datetime.timedelta(days=30)
LIFE = datetime.timedelta(seconds=names.CERTIFICATE_SECONDS)
LEAST_MARGIN = datetime.timedelta(seconds=3)


def settled(life: datetime.timedelta) -> datetime.timedelta:
    """How long until no certificate of now is valid, if all live so long; a day's margin is 1 h."""
    return life + max(life / 24, LEAST_MARGIN)


SETTLED = settled(LIFE)


@dataclass(frozen=True)
class Authorities:
    signing: Authority
    following: Authority | None = None  # trusted, does not sign yet
    former: bytes | None = None  # PEM of a certificate that is still trusted
    since: datetime.datetime | None = None  # when `former` signed last

    @property
    def bundle(self) -> bytes:
        """PEM of all that agents trust."""
        following = self.following.certificate if self.following else b""
        return self.signing.certificate + following + (self.former or b"")


def turn(
    found: Authorities,
    now: datetime.datetime,
    make: Callable[[datetime.datetime], Authority] = make_authority,
    wait: datetime.timedelta = SETTLED,
) -> Authorities:
    """What should be there now; `found` where nothing is due. `wait`: see `settled`."""
    end = _certificate(found.signing).not_valid_after_utc
    if now >= end:
        return Authorities(make(now))  # nothing that it signed is valid any more
    if found.former and found.since and now >= found.since + wait:
        return replace(found, former=None, since=None)
    following = found.following
    if following is None:
        due = now >= end - OVERLAP and found.former is None
        return replace(found, following=make(now)) if due else found
    made = _certificate(following).not_valid_before_utc + CLOCK_SKEW
    if now < made + wait:
        return found
    return Authorities(following, None, found.signing.certificate, now)


def _certificate(authority: Authority) -> x509.Certificate:
    return x509.load_pem_x509_certificate(authority.certificate)
