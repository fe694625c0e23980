"""How much memory the agent may still take before its own limit kills it; for session.room."""

from __future__ import annotations

from pathlib import Path

from epfabric_agent.topology.machine import Machine, number, text

_NO_LIMIT = 1 << 60  # cgroup v1 says 2^63 less a page


def left_bytes(machine: Machine) -> int | None:
    """Least of what the limits of its control groups leave; None where there is no limit.

    What the kernel can drop (files not used lately) counts as free. Shared memory does not.
    """
    rooms = [room for folder in _folders(machine) if (room := _room(folder)) is not None]
    return min(rooms, default=None)


def _folders(machine: Machine) -> list[Path]:
    """The agent's control group and those above it, as far as they can be seen from here."""
    found = []
    for line in text(machine.proc / "self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        root = machine.sys / "fs/cgroup" / ("memory" if controllers else "")
        own = root / path.lstrip("/")
        found += [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return found


def _room(folder: Path) -> int | None:
    limit = number(folder / "memory.max", number(folder / "memory.limit_in_bytes", _NO_LIMIT))
    if limit >= _NO_LIMIT:
        return None
    used = number(folder / "memory.current", number(folder / "memory.usage_in_bytes", 0))
    stat = dict(line.split(" ", 1) for line in text(folder / "memory.stat").splitlines())
    idle = stat.get("total_inactive_file", stat.get("inactive_file", "0"))
    return limit - used + int(idle)
