"""Certificates are renewed at half of their life, also after an operator that was long away."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path

import pytest
from epfabric_agent.kube.api import ApiError
from epfabric_agent.kube.certificate_loop import RETRY_MOST_S, Certificates, Clock
from epfabric_agent.pki import authority
from epfabric_agent.pki.identity import Credentials, NodeIdentity, PkiError, lifetime, renew_at

NODE = NodeIdentity("a", "moe", "127.0.0.1")


class Ended(Exception):
    """The test has seen enough."""


class Stand:
    """A clock that moves by sleeping, and an operator that refuses `refusals` times."""

    def __init__(self, folder: Path) -> None:
        self.now = datetime.datetime.now(datetime.UTC)
        self.folder = folder
        self.asked: list[datetime.datetime] = []
        self.slept: list[float] = []
        self.refusals: list[Exception] = []
        authority.make_authority(folder, 30)
        self.certificates = Certificates(NODE, self.ask, Clock(lambda: self.now, self.sleep))

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += datetime.timedelta(seconds=seconds)
        await asyncio.sleep(0)

    def ask(self) -> Credentials:
        self.asked.append(self.now)
        if self.refusals:
            raise self.refusals.pop()
        if len(self.asked) > 12:
            raise Ended
        authority.issue(self.folder, NODE, 1, self.folder)
        return authority.load(self.folder, "a")


async def test_a_new_certificate_is_asked_for_at_half_life(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    await stand.certificates.first()
    first = stand.certificates.current()
    keeping = asyncio.create_task(stand.certificates.keep())
    async with asyncio.timeout(20):
        while stand.certificates.current() is first:
            await asyncio.sleep(0.01)
    keeping.cancel()
    at = renew_at(first.certificate)
    begin, end = lifetime(first.certificate)
    assert begin < at < end
    assert abs((stand.asked[1] - at).total_seconds()) < 1
    assert stand.certificates.current().key != first.key


async def test_a_renewal_that_is_refused_is_tried_again_and_the_old_one_serves(
    tmp_path: Path,
) -> None:
    stand = Stand(tmp_path)
    await stand.certificates.first()
    first = stand.certificates.current()
    stand.refusals = [ApiError(0, "away"), PkiError("refused"), TimeoutError("slow")] * 3
    with pytest.raises(Ended):
        await asyncio.wait_for(stand.certificates.keep(), 20)
    pauses = stand.slept[1:10]
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, *[RETRY_MOST_S] * 4]
    assert stand.asked[10] < lifetime(first.certificate)[1]
    assert stand.certificates.current() != first


def test_without_a_certificate_nobody_is_shown_one(tmp_path: Path) -> None:
    with pytest.raises(PkiError, match="no certificate yet"):
        Stand(tmp_path).certificates.current()
