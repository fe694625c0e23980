"""Sizes ("4Gi") and durations ("30s") as the API writes them; used by the mirror's properties."""

import re

_SIZE = re.compile(r"([1-9][0-9]{0,12})(Ki|Mi|Gi|Ti)?")
_SIZE_UNITS = {None: 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_DURATION = re.compile(r"([1-9][0-9]{0,6})(ms|s|m|h)")
_SHORT = re.compile(r"([1-9][0-9]{0,6})(us|ms|s)|0s")
_SHORT_UNITS_US = {"us": 1, "ms": 1000, "s": 1_000_000}
_DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def size_bytes(text: str) -> int:
    """Bytes of a size such as "4Gi" or "1048576". Raises ValueError."""
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a size: write whole bytes, or Ki, Mi, Gi, Ti as in 4Gi")
    return int(match[1]) * _SIZE_UNITS[match[2]]


def duration_ms(text: str) -> int:
    """Milliseconds of a duration such as "500ms", "30s", "5m", "1h". Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a duration: write one unit, as in 500ms, 30s, 5m or 1h")
    return int(match[1]) * _DURATION_UNITS_MS[match[2]]


def short_duration_us(text: str) -> int:
    """Microseconds of a duration such as "500us", "10ms", "1s", or "0s". Raises ValueError."""
    match = _SHORT.fullmatch(text)
    if not match:
        raise ValueError(f"{text!r} is not a short duration: write one as in 500us, 10ms, 1s or 0s")
    return int(match[1]) * _SHORT_UNITS_US[match[2]] if match[1] else 0
