"""What memory a session's hello is admitted for, and until when it is kept free."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from epfabric import messages
from epfabric_agent.budget import MAILBOX_BYTES, budget_of, queue_bytes
from epfabric_agent.pods import Pod
from epfabric_agent.session.nic_turns import Turn
from epfabric_agent.session.opening import admit_memory, make_rank
from epfabric_agent.session.quota import Quota, QuotaError
from epfabric_agent.session.room import RESERVE_BYTES, Room
from epfabric_agent.session.services import Services
from epfabric_crds import Settings

HUGE = 1 << 50
WORLD = 64
HELLO = messages.Hello(abi=1, oldest=1, rank=0, world_size=WORLD, gpu=None, pid=1)
POD = Pod("p", "ns", "p", "g", None, Path("/nowhere"))


class Agent:
    """As much of one as admits sessions, with `left_bytes` of memory."""

    def __init__(self, lines: int, left_bytes: int = HUGE, spares: int = 0) -> None:
        self.left_bytes = left_bytes
        self.room = Room(lambda: self.left_bytes)
        self.quota = Quota(HUGE, HUGE)
        ledger = SimpleNamespace(give_back=lambda _: None, keep_first=lambda _: None)
        self.services = cast(
            Services,
            SimpleNamespace(
                settings=Settings(),
                quota=self.quota,
                room=self.room,
                lines=lines,
                spares=spares,
                pins=lines > 0,
                cpus=SimpleNamespace(ledger=ledger, take=lambda *_, **__: 1),
            ),
        )


def held_bytes(lines: int) -> int:
    agent = Agent(lines)
    admit_memory(HELLO, POD, agent.services)
    return agent.room.held_bytes


@pytest.mark.parametrize("lines", [1, 2])
def test_verbs_queues_and_mailboxes_are_admitted_for_as_the_budget_counts_them(lines: int) -> None:
    alone = budget_of(Settings(), WORLD, ranks_per_node=1, regions=0)
    counted = sum(queue_bytes(Settings(), alone["links"], lines))
    own_links = sum(queue_bytes(Settings(), 4, lines)) - sum(queue_bytes(Settings(), 0, lines))
    assert counted > 0
    mailboxes = alone["pinned_bytes"] - 4 * WORLD * MAILBOX_BYTES  # those over tcp are in both
    assert held_bytes(lines) - held_bytes(0) == counted + own_links + mailboxes


def test_nics_that_stand_by_are_admitted_for_without_links_and_with_short_queues() -> None:
    agent = Agent(1, spares=3)
    admit_memory(HELLO, POD, agent.services)
    more = agent.room.held_bytes - held_bytes(1)
    assert more == queue_bytes(Settings(), 0, 0, 3)[0]
    assert 0 < more < queue_bytes(Settings(), 0, 3)[0]


def test_a_session_whose_queues_do_not_fit_is_refused_and_has_taken_nothing() -> None:
    agent = Agent(1, held_bytes(1) + RESERVE_BYTES - 1)
    with pytest.raises(QuotaError, match=f"takes {held_bytes(1)} bytes of the agent's own memory"):
        admit_memory(HELLO, POD, agent.services)
    assert (agent.room.held_bytes, agent.quota.used_bytes) == (0, 0)
    agent.left_bytes += 1
    admit_memory(HELLO, POD, agent.services)


def test_room_for_links_is_kept_until_they_are_there_or_the_session_has_ended() -> None:
    agent = Agent(1)
    turns: list[bool] = []
    for ends_first in (False, True):
        memory = admit_memory(HELLO, POD, agent.services)
        turn = Turn((0,), 1, partial(turns.append, ends_first))
        nothing = cast(Any, SimpleNamespace(tell=None, hung_up=None))
        local = make_rank(HELLO, "p", 1, POD, nothing, agent.services, memory, turn, None)
        memory.opening.settle()
        # What NICs have pinned by then is no longer to come.
        assert agent.room.held_bytes == queue_bytes(Settings(), 4 * WORLD, 1)[1]
        if not ends_first:
            local.linked()
            assert agent.room.held_bytes == 0
        local.release()
        assert agent.room.held_bytes == 0
        assert agent.quota.used_bytes == 0
    assert turns == [False, True]  # its NICs are given back with it
