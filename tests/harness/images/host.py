"""What this machine has set for package sources, as a folder that a build mounts at /mnt.

Mounted, not copied: nothing of it stays in an image (a test looks for it).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from harness.images.debian import write_apt_settings

SEEN_AS = "/mnt"
CACHE_SEEN_AS = "/media"
TAKEN = re.compile(
    r"(PIP|UV)_[A-Z0-9_]+|(https?|no|all)_proxy|(HTTPS?|NO|ALL)_PROXY|SSL_CERT_FILE"
    r"|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|NETRC"
)
# These say where this machine keeps its own things, or what it builds for.
NOT_TAKEN = re.compile(
    r"PIP_(CACHE_DIR|FIND_LINKS|TARGET|PREFIX|USER|CONFIG_FILE)|UV_(CACHE_DIR|PYTHON.*|PROJECT.*|FIND_LINKS"
    r"|TOOL_.*|LINK_MODE|OFFLINE)"
)
UV_FILES = ("~/.config/uv/uv.toml", "/etc/uv/uv.toml")
PIP_FILES = ("/etc/pip.conf", "~/.config/pip/pip.conf", "~/.pip/pip.conf")


def settings(environment: Mapping[str, str], pip: str) -> dict[str, str]:
    """Variables for a build. `pip`: pip's own settings files' text, one `key = value` a line."""
    taken = {
        f"PIP_{key.upper().replace('-', '_')}": value
        for key, value in re.findall(r"(?m)^\s*([a-z-]+)\s*=\s*(\S.*?)\s*$", pip)
    }
    taken |= {name: value for name, value in environment.items() if TAKEN.fullmatch(name)}
    return {name: v for name, v in sorted(taken.items()) if v and not NOT_TAKEN.fullmatch(name)}


def write(folder: Path) -> None:
    """Fills `folder`: env (a shell script), the files that its variables name, apt's settings.

    Downloads and compiled objects are kept at CACHE_SEEN_AS, which the caller mounts too.
    """
    pip = "\n".join(path.read_text() for path in existing(PIP_FILES))
    lines = [f"export APT_CONFIG={SEEN_AS}/apt.conf"]
    # A second build is to show that compilers give the same bytes, not that a cache does.
    lines.append('if [ -n "${AGAIN:-}" ]; then export CCACHE_RECACHE=1; fi')
    for name, part in (("UV_CACHE_DIR", "uv"), ("PIP_CACHE_DIR", "pip"), ("CCACHE_DIR", "ccache")):
        lines.append(f"export {name}={CACHE_SEEN_AS}/{part}")
    chosen = settings(os.environ, pip)
    if configured := existing(UV_FILES):
        chosen.setdefault("UV_CONFIG_FILE", str(configured[0]))
    if (netrc := Path("~/.netrc").expanduser()).is_file():
        chosen.setdefault("NETRC", str(netrc))
    for name, value in chosen.items():
        if os.path.isfile(value):
            shutil.copy(value, folder / name)
            value = f"{SEEN_AS}/{name}"
        lines.append(f"export {name}={shlex.quote(value)}")
    (folder / "env").write_text("\n".join(lines) + "\n")
    write_apt_settings(folder, SEEN_AS)


def existing(names: tuple[str, ...]) -> list[Path]:
    return [path for name in names if (path := Path(name).expanduser()).is_file()]
