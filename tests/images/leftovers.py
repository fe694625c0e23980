"""What a build may leave in an image's tree; used by the tiers images and arm64."""

from __future__ import annotations

import time
from pathlib import Path

# Where builds, installers and apt leave things; Debian's own base holds nothing in them.
EMPTY = (
    "mnt",
    "media",
    "tmp",
    "home",
    "srv",
    "run/host",
    "root/.cache",
    "var/log",
    "var/cache/apt",
)
FILES = ("etc/apt/sources.list", "etc/apt/sources.list.d/*", "etc/apt/apt.conf.d/*mmdebstrap*")
DAY_S = 86400


def leftovers(root: Path) -> list[str]:
    """Files of the build or of the machine, and accounts that tell the day of the build."""
    left = [str(p) for name in EMPTY for p in sorted((root / name).glob("*"))]
    left += [str(p) for pattern in FILES for p in sorted(root.glob(pattern))]
    machine = root / "etc/machine-id"
    left += [str(machine)] if machine.is_file() and machine.read_text().strip() else []
    today = int(time.time() / DAY_S)
    accounts = [line.split(":") for line in (root / "etc/shadow").read_text().splitlines()]
    return left + [":".join(a) for a in accounts if int(a[2] or 0) > today - 365]
