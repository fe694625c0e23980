"""Compiles kernels for the GPU at hand by NVRTC, once for each content; for epfabric.cuda.

Results lie in `$EPFABRIC_CACHE/kernels` (default `~/.cache/epfabric/kernels`), one file for each
source, closure of its headers, architecture, options and compiler. They are published by a
rename, so that ranks that start together may all compile and none reads half a file.
"""

from __future__ import annotations

import os
import tempfile
import threading
from importlib.resources import files
from pathlib import Path

from epfabric.cuda.closure import closure, digest

INCLUDE = Path(str(files("epfabric") / "include"))
MINIMUM_NVRTC = (12, 8)
STANDARD = "c++20"
# Ranks may be threads. The first import of the compiler's packages by two at once fails.
_ONE_AT_A_TIME = threading.Lock()


class CompileError(RuntimeError):
    """NVRTC is missing, too old, or refused the source; the message holds its log."""


def cubin(source: str, name: str, architecture: str, defines: tuple[str, ...] = ()) -> bytes:
    """Machine code of `source` for one architecture, such as "sm_90".

    name: for messages. defines: "NAME" or "NAME=VALUE". Raises CompileError.
    """
    with _ONE_AT_A_TIME:
        return _cubin(source, name, architecture, defines)


def _cubin(source: str, name: str, architecture: str, defines: tuple[str, ...]) -> bytes:
    major, minor = nvrtc_version()
    options = (architecture, STANDARD, *defines, f"nvrtc {major}.{minor}")
    path = folder() / f"{digest(source, closure(source, [INCLUDE]), options)}.cubin"
    try:
        return path.read_bytes()
    except OSError:
        pass  # not there, or the cache is out of reach
    code = _compile(source, name, architecture, defines)
    _publish(path, code)
    return code


def folder() -> Path:
    """Where compiled kernels are kept."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "epfabric"
    return Path(os.environ.get("EPFABRIC_CACHE") or default) / "kernels"


def nvrtc_version() -> tuple[int, int]:
    """Raises CompileError where NVRTC is missing or older than MINIMUM_NVRTC."""
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise CompileError(
            f"NVIDIA's run-time compiler is not there ({error}): pip install 'epfabric[cuda]'"
        ) from error
    if (major, minor) < MINIMUM_NVRTC:
        wanted = ".".join(map(str, MINIMUM_NVRTC))
        raise CompileError(f"NVRTC {major}.{minor} is too old: {wanted} or newer is needed")
    return int(major), int(minor)


def _compile(source: str, name: str, architecture: str, defines: tuple[str, ...]) -> bytes:
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        name=name,
        arch=architecture,
        std=STANDARD,
        include_path=[str(INCLUDE)],
        define_macro=[_macro(define) for define in defines] or None,
    )
    try:
        return bytes(Program(source, "c++", options).compile("cubin").code)
    except Exception as error:  # the package has an exception type for each kind of failure
        raise CompileError(f"{name} does not compile for {architecture}: {error}") from error


def _macro(define: str) -> str | tuple[str, str]:
    name, equals, value = define.partition("=")
    return (name, value) if equals else name


def _publish(path: Path, code: bytes) -> None:
    """Best effort: a cache that cannot be written costs time only."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as unfinished:
            file = Path(unfinished) / path.name
            file.write_bytes(code)
            file.rename(path)
    except OSError:
        pass
