"""One ring of a session, for a CPU process that pushes commands; made by Session.ring()."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from epfabric import command
from epfabric.errors import CommandRefused
from epfabric.failure import Failure, wait_until
from epfabric.limits import ATOMIC_WORD, OFFSET_UNIT

if TYPE_CHECKING:
    from epfabric_host import _producer

_FIRST_TRY_NS = 200_000_000
_Add = Callable[[int], tuple[int, int]]


class Ring:
    """Pushes commands to the ring's proxy and follows their completion.

    Commands collect in an open batch and are published when that is full, by flush(), or by any
    wait. Offsets and sizes are in bytes and must be multiples of 16. One thread at a time.
    """

    def __init__(
        self, native: _producer.Ring, index: int, failure: Failure, timeout_s: float
    ) -> None:
        self._native = native
        self._failure = failure
        self._timeout_s = timeout_s
        self._refused_seen = 0
        self.index = index

    def write(
        self,
        dst_rank: int,
        src_offset: int,
        dst_offset: int,
        nbytes: int,
        signal: int | None = None,
        advance: int = 0,
    ) -> int:
        """Copies nbytes from this rank's offset space into dst_rank's; returns the ticket.

        With signal, that word of (this rank, this ring) at dst_rank grows by advance once the
        bytes are there. The source may be reused when completed(ticket). ValueError if a field
        does not fit a command: at most 16 MiB, advance 1 to 32767.
        """
        if (src_offset | dst_offset | nbytes) % OFFSET_UNIT:
            raise ValueError(
                f"source {src_offset}, destination {dst_offset} and size {nbytes} "
                f"must be multiples of {OFFSET_UNIT} bytes"
            )
        if (signal is None) != (advance == 0):
            raise ValueError("signal and advance go together: give both or neither")
        fields = (
            dst_rank,
            src_offset // OFFSET_UNIT,
            dst_offset // OFFSET_UNIT,
            nbytes // OFFSET_UNIT,
            signal or 0,
            advance,
        )
        native = self._native
        try:
            status, ticket = native.write(*fields, _FIRST_TRY_NS)
        except (TypeError, ValueError):
            _name_misfit(*fields)
            raise
        return ticket if not status else self._when_room(lambda ns: native.write(*fields, ns))

    def signal(self, dst_rank: int, index: int, advance: int = 1) -> int:
        """Lets a signal word at dst_rank grow, after this ring's earlier writes to that rank."""
        native = self._native
        try:
            status, ticket = native.signal(dst_rank, index, advance, _FIRST_TRY_NS)
        except (TypeError, ValueError):
            command.pack_signal(dst_rank, index, advance)  # names the field that does not fit
            raise
        if status:
            ticket = self._when_room(lambda ns: native.signal(dst_rank, index, advance, ns))
        return ticket

    def atomic_add(self, dst_rank: int, offset: int, value: int) -> int:
        """Adds value, modulo 2^64, to the word at this byte offset of dst_rank; the ticket.

        The word is 8 bytes at a multiple of 8 in dst_rank's regions, changed only by atomics. Each
        takes effect once, after this ring's earlier writes to that rank are visible there. It is
        completed(ticket) when result(ticket) has what the word held before. value: -2^63 to 2^64-1.
        """
        word, operand = _word(offset), _operand("value", value)
        native = self._native
        try:
            status, ticket = native.atomic_add(dst_rank, word, operand, _FIRST_TRY_NS)
        except (TypeError, ValueError):
            command.pack_atomic(command.Op.ADD, dst_rank, word, operand)  # names the field
            raise
        if status:
            ticket = self._when_room(lambda ns: native.atomic_add(dst_rank, word, operand, ns))
        return ticket

    def atomic_cas(self, dst_rank: int, offset: int, expected: int, value: int) -> int:
        """Stores value in the word, as atomic_add() names it, if it holds expected; the ticket.

        result(ticket) equals expected where it was stored. Takes two tickets; this is the first.
        """
        word = _word(offset)
        operands = _operand("expected", expected), _operand("value", value)
        native = self._native
        try:
            status, ticket = native.atomic_cas(dst_rank, word, *operands, _FIRST_TRY_NS)
        except (TypeError, ValueError):
            command.pack_atomic(command.Op.CAS, dst_rank, word, operands[0])  # names the field
            raise
        if status:
            ticket = self._when_room(lambda ns: native.atomic_cas(dst_rank, word, *operands, ns))
        return ticket

    def result(self, ticket: int, timeout_s: float | None = None) -> int | None:
        """Waits for an atomic; what its word held before it, 0 to 2^64-1.

        None where it ended without an answer, its destination being masked: it may have been
        applied all the same (or it was refused, which was raised already). Raises as wait() does,
        and ValueError where as many later commands as the ring is deep were pushed: its place may
        hold the result of another one.
        """
        self.wait(ticket, timeout_s, f"the result of ticket {ticket} of ring {self.index}")
        old = self._native.result(ticket)
        if old is None and self.next_ticket - ticket > self._native.depth:
            raise ValueError(
                f"the result of ticket {ticket} may be gone: read it before "
                f"{self._native.depth} more commands are pushed to ring {self.index}"
            )
        return old

    def drain(self) -> int:
        """Pushes a DRAIN: completed once all earlier writes are readable at their targets."""
        return self._when_room(self._native.drain)

    def push_barrier(self, rail: bool = False) -> int:
        """Pushes a BARRIER; Session.barrier() does what must precede it."""
        native = self._native
        return self._when_room(lambda ns: native.barrier(ns, rail))

    def push(self, commands: NDArray[np.uint64], timeout_s: float | None = None) -> None:
        """Pushes ready-made commands, (n, 2) halves as epfabric.command packs them.

        Nothing is checked here: a bad command is refused by the agent. Raises Timeout when
        the ring stays full; what was pushed until then stays pushed (next_ticket tells).
        """
        if commands.dtype != np.uint64 or commands.ndim != 2 or commands.shape[1] != 2:
            raise ValueError(
                f"commands are {commands.shape} of {commands.dtype}; they must be (n, 2) of uint64"
            )
        commands = np.ascontiguousarray(commands)
        limit = self._timeout_s if timeout_s is None else timeout_s
        done = 0

        def attempt(timeout_ns: int) -> int:
            nonlocal done
            status, pushed = self._native.push(commands[done:], timeout_ns)
            done += pushed
            return status

        wait_until(attempt, self._failure, limit, f"room in ring {self.index} for {len(commands)}")

    def flush(self) -> None:
        """Publishes the open batch."""
        wait_until(self._native.flush, self._failure, self._timeout_s, self._room())

    def completed(self, ticket: int) -> bool:
        """Whether the command is completed (its source may be reused); never blocks."""
        return self._native.completed() > ticket

    def wait(
        self, ticket: int, timeout_s: float | None = None, waits_for: str | None = None
    ) -> None:
        """Publishes the open batch and waits for a ticket.

        Raises Timeout, GroupFailed, or CommandRefused if commands of this ring were refused since
        the last look.
        """
        limit = self._timeout_s if timeout_s is None else timeout_s
        wait_until(
            lambda ns: self._native.wait(ticket, ns),
            self._failure,
            limit,
            waits_for or f"ticket {ticket} of ring {self.index}",
        )
        self.check_refused()

    def check_refused(self) -> None:
        """Raises CommandRefused if the agent refused commands since the last look."""
        count, ticket, reason = self._native.refused()
        if count != self._refused_seen:
            new = count - self._refused_seen
            self._refused_seen = count
            raise CommandRefused(self.index, ticket, command.Refusal(reason).text, new)

    @property
    def next_ticket(self) -> int:
        """The ticket of the next command: the number of commands accepted so far."""
        return self._native.next_ticket

    def _when_room(self, add: _Add) -> int:
        ticket = 0

        def attempt(timeout_ns: int) -> int:
            nonlocal ticket
            status, ticket = add(timeout_ns)
            return status

        wait_until(attempt, self._failure, self._timeout_s, self._room())
        return ticket

    def _room(self) -> str:
        return f"room in ring {self.index} (its proxy takes no commands)"


def _word(offset: int) -> int:
    if offset % ATOMIC_WORD or offset < 0:
        raise ValueError(f"offset {offset} is no multiple of {ATOMIC_WORD} bytes from 0 on")
    return offset // ATOMIC_WORD


def _operand(name: str, value: int) -> int:
    """As 64 bits, negative ones in two's complement."""
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"{name} is {value}; an atomic holds -2^63 to 2^64-1")
    return value & ((1 << 64) - 1)


def _name_misfit(
    rank: int, source: int, destination: int, units: int, signal: int, advance: int
) -> None:
    """Raises ValueError that names the field of a WRITE that does not fit."""
    command.pack_write(
        command.Write(
            rank=rank,
            source=source,
            destination=destination,
            units=units,
            signal=signal,
            advance=advance,
        )
    )
