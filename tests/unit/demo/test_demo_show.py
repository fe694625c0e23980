"""What the demo prints stays readable, and what the kernel prints is read right."""

from __future__ import annotations

import pytest
from harness.demo import show, wires

SOCKETS = """\
ESTAB 0 0 127.0.1.1:5000 127.0.1.2:6000 users:(("agent",pid=10,fd=4)) bbr bytes_acked:50 rtt:1
ESTAB 0 0 127.0.1.2:6000 127.0.1.1:5000 users:(("agent",pid=11,fd=9)) bbr bytes_acked:7 rtt:1
ESTAB 0 0 127.0.1.2:6001 127.0.1.1:5000 users:(("agent",pid=11,fd=8)) bbr bytes_acked:3 rtt:1
ESTAB 0 0 127.0.1.1:5000 127.0.1.2:6001 users:(("agent",pid=10,fd=5)) bbr rtt:1
ESTAB 0 0 127.0.1.2:7000 127.0.1.9:443 users:(("agent",pid=11,fd=5)) bbr bytes_acked:900
ESTAB 0 0 127.0.1.1:7001 127.0.1.1:7002 users:(("agent",pid=10,fd=6)) bbr bytes_acked:800
ESTAB 0 0 127.0.1.1:7002 127.0.1.1:7001 users:(("agent",pid=10,fd=7)) bbr bytes_acked:800
nonsense
"""


def test_bytes_are_those_between_two_agents_and_no_others() -> None:
    connections = wires.tcp_bytes(SOCKETS, {10: "a", 11: "b"})
    assert wires.by_pair(connections) == {("a", "b"): 50, ("b", "a"): 10}


def test_connections_of_strangers_count_nothing() -> None:
    assert wires.tcp_bytes(SOCKETS, {77: "a"}) == {}


def test_a_table_puts_numbers_to_the_right_and_words_to_the_left() -> None:
    text = show.table(["phase", "P99"], [["arrive", "12 ms"], ["total", "3 µs"]])
    assert text.splitlines() == ["phase     P99", "arrive  12 ms", "total    3 µs"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.0, "2 s"), (0.01234, "12.3 ms"), (4.56e-6, "4.56 µs"), (7e-10, "0.7 ns"), (0.0, "0 s")],
)
def test_durations_have_the_unit_that_fits(seconds: float, text: str) -> None:
    assert show.duration(seconds) == text
