"""What a setting's value should be, in the form in which it is read: pure, for nic.plan.

Values are texts that say all that a setting changes, so that writing an earlier one brings it
back: MTU in bytes; v1 or v2; pcp, or dscp= and a priority for each of the 64 DSCPs; the ToS byte
of connections and, after /, the NIC's traffic class where it has one; eight bits of PFC; for ECN
1 or 0, or eight bits for notifying and, after /, for reacting.
"""

from __future__ import annotations

from collections.abc import Callable

from epfabric_crds.settings import Nics

DSCPS = 64
# The usual map: the upper three bits of a DSCP are its priority.
DSCP_MAP = "dscp=" + "".join(str(dscp >> 3) for dscp in range(DSCPS))


def target(setting: str, wanted: Nics, current: str) -> str | None:
    """The value that `wanted` asks for; None where it asks for none. `current` as it was read."""
    return _TARGETS[setting](wanted, current)


def short(setting: str, value: str) -> str:
    """For people."""
    if setting == "trust":
        return value.partition("=")[0]
    if setting == "tos":
        first, _, second = value.partition("/")
        return first if second in ("", first) else value
    return value


def _mtu(wanted: Nics, current: str) -> str | None:
    return None if wanted.mtu is None else str(wanted.mtu)


def _roce_mode(wanted: Nics, current: str) -> str | None:
    return wanted.roce_mode


def _trust(wanted: Nics, current: str) -> str | None:
    if wanted.trust == "dscp":
        return current if current.startswith("dscp=") else DSCP_MAP
    return wanted.trust


def _tos(wanted: Nics, current: str) -> str | None:
    if wanted.tos is None:
        return None
    return f"{wanted.tos}/{wanted.tos}" if "/" in current else str(wanted.tos)


def _pfc(wanted: Nics, current: str) -> str | None:
    return wanted.pfc


def _ecn(wanted: Nics, current: str) -> str | None:
    """Of the priorities with flow control, or of all where no pfc is wanted."""
    if wanted.ecn is None:
        return None
    bit = "1" if wanted.ecn else "0"
    if "/" not in current:
        return bit
    used = wanted.pfc.split(",") if wanted.pfc and "1" in wanted.pfc else ["1"] * 8
    halves = current.split("/")
    return "/".join(
        "".join(bit if use == "1" else old for use, old in zip(used, half, strict=True))
        for half in halves
    )


_TARGETS: dict[str, Callable[[Nics, str], str | None]] = {
    "mtu": _mtu,
    "roceMode": _roce_mode,
    "trust": _trust,
    "tos": _tos,
    "pfc": _pfc,
    "ecn": _ecn,
}
