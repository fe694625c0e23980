"""Takes out of objects and logs what could be a secret; pure, used by gather.py.

What is shown is chosen, not what is hidden: values of environment variables, of annotations that
are not ours, of arguments after a secret-looking name, and data of ConfigMaps never pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "(hidden)"
OURS = "epfabric.io/"
_DATA = frozenset({"data", "stringData", "binaryData"})
_DROPPED = frozenset({"managedFields", "certificate", "request", "caBundle"})
_NAMES = (
    r"pass(?:word|wd|phrase)?|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credentials?"
    r"|authorization|cookie|session[-_]?id|bearer|signature"
)
_SECRET_NAME = re.compile(rf"(?:{_NAMES})$", re.IGNORECASE)
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_PATTERNS = (
    # JSON web tokens, such as those of service accounts.
    (re.compile(r"\beyJ[\w-]{5,}\.[\w-]+(?:\.[\w-]*)?"), HIDDEN),
    # URLs with a user and a password.
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@\"']+@", re.IGNORECASE), rf"\1{HIDDEN}@"),
    # Query parts of URLs.
    (re.compile(r"(https?://[^\s?\"']+\?)[^\s\"']+", re.IGNORECASE), rf"\1{HIDDEN}"),
    (
        re.compile(r"\b(bearer|basic|negotiate)(\s+)[\w.~+/=:-]{6,}", re.IGNORECASE),
        rf"\1\2{HIDDEN}",
    ),
    # name=value, name: value, "name": "value"; after a blank only what looks made by a machine
    (
        re.compile(
            rf"([\w.-]*(?:{_NAMES})[\"']?(?:\s*[=:]\s*|\s+(?=\S*\d)(?=\S*[A-Za-z])(?=\S{{12,}})))"
            r"(\"[^\"\n]*\"|'[^'\n]*'|[^\s,;\"'}]+)",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    # Well-known shapes of cloud and forge tokens.
    (
        re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b|\bgh[pousr]_\w{16,}|\bxox[abps]-[\w-]{10,}"),
        HIDDEN,
    ),
)


def text(value: str) -> str:
    """A line or a whole log."""
    value = _PEM.sub(lambda found: f"-----{found[1]} {HIDDEN}-----", value)
    for pattern, shown in _PATTERNS:
        value = pattern.sub(shown, value)
    return value


def clean(one: Any, key: str = "") -> Any:
    """A copy of an object of the API server that may be handed on."""
    if isinstance(one, Mapping):
        return {
            name: _field(name, value, key) for name, value in one.items() if name not in _DROPPED
        }
    if isinstance(one, str):
        return HIDDEN if _SECRET_NAME.search(key) and one else text(one)
    if isinstance(one, Sequence):
        return _arguments(one) if key in ("args", "command") else [clean(each, key) for each in one]
    return one


def _field(name: str, value: Any, parent: str) -> Any:
    if name in _DATA and isinstance(value, Mapping):
        return dict.fromkeys(value, HIDDEN)
    if name == "annotations" and isinstance(value, Mapping):
        return {k: text(str(v)) if k.startswith(OURS) else HIDDEN for k, v in value.items()}
    if parent in ("env", "httpHeaders") and name == "value":
        return HIDDEN
    return clean(value, name)


def _arguments(values: Sequence[Any]) -> list[Any]:
    """Of a command line: what follows a secret-looking option is hidden, and scripts are."""
    shown: list[Any] = []
    hide = False
    for value in values:
        word = str(value)
        if hide or "\n" in word:
            shown.append(HIDDEN)
        else:
            shown.append(text(word))
        hide = word.startswith("-") and bool(_SECRET_NAME.search(word))
    return shown
