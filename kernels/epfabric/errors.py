"""What can go wrong in a session, as exceptions that users of the library catch."""

from __future__ import annotations


class SessionError(Exception):
    """Base of all errors of a session; code is the agent's error code, where it has one."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class GroupFailed(SessionError):
    """The epoch ended: a rank or an agent was lost. Nothing of this session works any more."""


class Timeout(SessionError, TimeoutError):
    """A bounded wait ran out; the text says what it waited for."""


class CommandRefused(SessionError):
    """The agent refused at least one command; the ring goes on, the command had no effect."""

    def __init__(self, ring: int, ticket: int, reason: str, count: int) -> None:
        super().__init__(
            f"ring {ring}: {count} command(s) refused, the last with ticket {ticket}: {reason}",
            code=reason,
        )
        self.ring = ring
        self.ticket = ticket
        self.reason = reason
        self.count = count
