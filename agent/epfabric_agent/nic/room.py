"""What NICs have room for and what of it is used, as statuses and telemetry show it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from epfabric_crds.node import NicCount, NicRoom

NOTE = 10
"""A status is not rewritten for less than this part of a limit."""
Counts = Mapping[str, int]


def rooms(nics: Mapping[str, tuple[Counts, Counts]]) -> tuple[NicRoom, ...]:
    """By device, of what a core's nics() says: limits and uses, by the names of verbs."""
    found = []
    for device, (limits, used) in sorted(nics.items()):
        pairs, registrations = (
            NicCount(used=used[name], limit=max(limits[name], 0) or None)
            for name in ("max_qp", "max_mr")
        )
        found.append(NicRoom(device=device, queue_pairs=pairs, registrations=registrations))
    return tuple(found)


def as_noted(rooms: Iterable[NicRoom], noted: Iterable[NicRoom]) -> tuple[NicRoom, ...]:
    """`rooms`, but as in `noted` where a device's counts are close to those."""
    before = {room.device: room for room in noted}
    return tuple(
        old if (old := before.get(room.device)) is not None and _close(room, old) else room
        for room in rooms
    )


def _close(room: NicRoom, old: NicRoom) -> bool:
    pairs = ((room.queue_pairs, old.queue_pairs), (room.registrations, old.registrations))
    return all(
        now.limit == was.limit
        and (now.limit is None or abs(now.used - was.used) * NOTE < now.limit)
        for now, was in pairs
    )
