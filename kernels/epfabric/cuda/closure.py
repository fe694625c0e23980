"""Which headers a kernel's source includes, and theirs; the key of the compiler's cache."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.MULTILINE)


def closure(source: str, folders: Iterable[Path]) -> dict[Path, bytes]:
    """The content of every header that `source` includes, directly or not.

    A header is looked for beside the one that includes it, then in `folders`; the compiler's own
    are not found and left out. Conditional includes count, whether taken or not.
    """
    roots = list(folders)
    found: dict[Path, bytes] = {}
    waiting: list[tuple[str, Path | None]] = [(name, None) for name in _INCLUDE.findall(source)]
    while waiting:
        name, beside = waiting.pop()
        path = _find(name, [*([beside] if beside else []), *roots])
        if path is None or path in found:
            continue
        found[path] = path.read_bytes()
        waiting += [(inner, path.parent) for inner in _INCLUDE.findall(found[path].decode("utf-8"))]
    return found


def digest(source: str, headers: dict[Path, bytes], options: Iterable[str]) -> str:
    """64 hexadecimal digits that differ when anything differs that the compiler would read."""
    made = hashlib.sha256()
    contents = sorted(hashlib.sha256(content).digest() for content in headers.values())
    for part in (source.encode(), *contents, *(option.encode() for option in options)):
        made.update(len(part).to_bytes(8, "little"))
        made.update(part)
    return made.hexdigest()


def _find(name: str, folders: list[Path]) -> Path | None:
    for folder in folders:
        path = (folder / name).resolve()
        if path.is_file():
            return path
    return None
