"""What kernels are lent of a session: one borrower, tickets that go on, words that nobody had."""

from __future__ import annotations

import pytest
from epfabric.errors import SessionError
from epfabric.lending import Lending


def test_a_ring_has_one_producing_side() -> None:
    lending = Lending(rings=4, signals=16)
    lending.check(3)
    lending.take(5, used=[0])
    lending.check(0)
    for ring in (1, 3):
        with pytest.raises(SessionError, match=f"ring {ring} of this session is its kernels'"):
            lending.check(ring)
    with pytest.raises(SessionError, match="another buffer's"):
        lending.take(5, used=[0])


def test_the_next_borrower_goes_on_where_the_last_one_came_to_with_words_of_its_own() -> None:
    lending = Lending(rings=2, signals=16)
    first = lending.take(5, used=[0])
    assert first.heads == [0, 0]
    lending.back([0, 700])
    second = lending.take(5, used=[0])
    assert second.heads == [0, 700]
    words = [set(range(loan.first_signal, loan.first_signal + 5)) for loan in (first, second)]
    assert not words[0] & words[1]
    assert max(words[0] | words[1]) < 16
    lending.back([0, 900])
    with pytest.raises(SessionError, match="ring 1"):
        lending.check(1)  # also between two borrowers


def test_after_a_lost_ring_nothing_is_lent_again() -> None:
    lending = Lending(rings=2, signals=16)
    lending.take(5, used=[0])
    lending.back([0, 70], lost=True)
    for _ in range(2):
        with pytest.raises(SessionError, match="is lost"):
            lending.take(5, used=[0])


def test_what_is_not_there_is_not_lent() -> None:
    with pytest.raises(SessionError, match="beside the first"):
        Lending(rings=1, signals=16).take(5, used=[])
    with pytest.raises(SessionError, match=r"rings \[0, 2\] were used"):
        Lending(rings=4, signals=16).take(5, used=[0, 2])
    few = Lending(rings=2, signals=9)
    few.take(5, used=[])
    few.back([0, 0])
    with pytest.raises(SessionError, match="4 are left"):
        few.take(5, used=[])
