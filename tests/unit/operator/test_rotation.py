"""Authorities follow each other so that every valid certificate is trusted by every agent."""

from __future__ import annotations

import datetime
import random
from functools import cache

from cryptography import x509
from epfabric_crds import names
from epfabric_operator.authority import AUTHORITY_DAYS, Authority, make_authority
from epfabric_operator.rotation import OVERLAP, SETTLED, Authorities, turn

NOW = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
LIFE = datetime.timedelta(seconds=names.CERTIFICATE_SECONDS)
DAYS = datetime.timedelta(days=AUTHORITY_DAYS)


@cache
def made(at: datetime.datetime) -> Authority:
    return make_authority(at)


def certificates(pem: bytes) -> int:
    return len(x509.load_pem_x509_certificates(pem))


def test_nothing_is_due_before_the_end_is_near() -> None:
    found = Authorities(made(NOW))
    assert turn(found, NOW + DAYS - OVERLAP - LIFE) == found
    assert certificates(found.bundle) == 1


def test_a_new_one_is_trusted_then_signs_then_is_alone() -> None:
    first = made(NOW)
    near = NOW + DAYS - OVERLAP
    both = turn(Authorities(first), near)
    assert both.signing == first
    assert both.following is not None
    assert certificates(both.bundle) == 2
    assert turn(both, near + SETTLED - LIFE / 24) == both
    turned = turn(both, near + SETTLED)
    assert (turned.signing, turned.former) == (both.following, first.certificate)
    assert set(map(bytes.strip, turned.bundle.split(b"-----BEGIN"))) == set(
        map(bytes.strip, both.bundle.split(b"-----BEGIN"))
    )
    assert turn(turned, near + 2 * SETTLED - LIFE / 24) == turned
    alone = turn(turned, near + 2 * SETTLED)
    assert alone == Authorities(both.following)
    assert turn(alone, near + 3 * SETTLED) == alone


def test_one_that_has_ended_while_no_operator_ran_is_replaced_at_once() -> None:
    late = NOW + DAYS + LIFE
    found = turn(Authorities(made(NOW), made(NOW + DAYS - OVERLAP)), late)
    assert found.signing not in (made(NOW), made(NOW + DAYS - OVERLAP))
    assert certificates(found.bundle) == 1


def test_every_valid_certificate_is_in_every_bundle_that_an_agent_may_have_read() -> None:
    """Agents that renew anywhere in the life of a certificate, an operator that looks seldom."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    start = NOW + DAYS - OVERLAP - LIFE
    for _ in range(20):
        state = Authorities(made(NOW))
        agents: list[tuple[datetime.datetime, bytes, bytes]] = []  # until, issuer, bundle
        now, signers = start, set()
        while now < start + 4 * SETTLED:
            now += datetime.timedelta(hours=dice.uniform(0.1, 5))
            state = turn(state, now)
            signers.add(state.signing.certificate)
            agents = [agent for agent in agents if agent[0] > now]
            agents.append((now + LIFE, state.signing.certificate, state.bundle))
            for _until, issuer, _bundle in agents:
                assert all(issuer in bundle for _, _, bundle in agents)
        assert len(signers) == 2
