"""Cross-builds the native code for arm64, to run under qemu-user; for `harness.build` and tests.

The compiler is this machine's, headers and libraries are Debian 13's for arm64, as in the images.
Results lie in `$EPFABRIC_CACHE/arm64/<what>-<key>`, keyed by what goes in, published by a rename.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.build import cache, locked, say, uv
from harness.images import debian
from harness.images.buildah import run
from harness.images.content import walk
from harness.process import HarnessError

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "doctest-dev",
    "libc6-dev",
    "libfabric-dev",
    "libibverbs-dev",
    "libpython3-dev",
    "libpython3-stdlib",
    "libstdc++6",
    "python3-minimal",
)
TRIPLET = "aarch64-linux-gnu"
SOURCES = (
    "agent/native",
    "agent/CMakeLists.txt",
    "kernels",
    "tests/native",
    "tests/gpu/atomics.cu",
    "tests/harness/cached.cmake",
)
# Tests of protocols, on networks and in a time that they make, which come out the same on any
# machine and take half of the time; of those unordered_test.cc stays. Kernels' threads change by
# system calls, which are slow under the emulator.
LEFT_OUT = "/explorer/|mend_test|/striped_test|/host_kernels|/proxied_test"
KINDS = {".cc", ".h", ".cu", ".cuh", ".cmake", ".txt"}
# Grace's kernels are often built with it; the largest that arm64 knows.
PAGE_BYTES = 65536
TOOLCHAIN = """\
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER {triplet}-g++)
set(CMAKE_SYSROOT {sysroot})
set(CMAKE_LIBRARY_ARCHITECTURE {triplet})
foreach(kind EXE SHARED MODULE)
  set(CMAKE_${{kind}}_LINKER_FLAGS_INIT "-L{sysroot}/usr/lib/{triplet}")
endforeach()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
# {python} starts the emulator itself; this keeps FindPython content.
set(CMAKE_CROSSCOMPILING_EMULATOR /usr/bin/env)
set(Python_EXECUTABLE {python})
set(nanobind_DIR {nanobind}/nanobind/cmake)
"""


@dataclass(frozen=True)
class Built:
    """native_tests and the two Python modules, all for arm64, and what they run on."""

    folder: Path
    sysroot: Path

    @property
    def programs(self) -> dict[str, Path]:
        return {path.name: path for path in sorted(self.folder.iterdir())}

    def command(self, program: Path, *words: str) -> list[str]:
        """Runs an arm64 program with pages of PAGE_BYTES."""
        emulator = ["qemu-aarch64-static", "-p", str(PAGE_BYTES), "-L", str(self.sysroot)]
        return [*emulator, str(program), *words]

    @property
    def python(self) -> Path:
        return next(self.sysroot.glob("usr/bin/python3.[0-9]*"))


def built() -> Built:
    """Builds what is not in the cache; about 2 min on two cores. Raises HarnessError."""
    digest = hashlib.sha256(sysroot_key().encode())
    for path in sources():
        digest.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    digest.update(nanobind().encode() + LEFT_OUT.encode())
    folder = cache() / "arm64" / f"built-{digest.hexdigest()[:16]}"
    if not folder.is_dir():
        with locked(cache() / "arm64" / "lock", "another build for arm64"):
            if not folder.is_dir():
                build(sysroot(), folder)
    return Built(folder, cache() / "arm64" / f"sysroot-{sysroot_key()}")


def sources() -> list[Path]:
    """What goes into the build, sorted."""
    found = {path for name in SOURCES for path in walk(ROOT / name)}
    return sorted(path for path in found if path.suffix in KINDS)


def sysroot_key() -> str:
    return hashlib.sha256(repr((debian.SUITE, PACKAGES)).encode()).hexdigest()[:16]


def nanobind() -> str:
    """The requirement that the agent's build pins."""
    project = tomllib.loads((ROOT / "agent" / "pyproject.toml").read_text())
    return str(next(r for r in project["build-system"]["requires"] if r.startswith("nanobind")))


def sysroot() -> Path:
    """Debian 13's packages for arm64, unpacked but not configured: nothing of them runs for it."""
    folder = cache() / "arm64" / f"sysroot-{sysroot_key()}"
    if folder.is_dir():
        return folder
    say("unpacking Debian's arm64 libraries")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".sysroot-", dir=folder.parent) as parent:
        made = Path(parent, "root")
        options = ["--architectures=arm64", "--variant=extract", f"--include={','.join(PACKAGES)}"]
        debian.mmdebstrap([*options], made)
        (made / "lib").symlink_to("usr/lib")
        made.rename(folder)
    return folder


def build(sysroot: Path, folder: Path) -> None:
    """Configures and compiles the three, then publishes what came out as `folder`."""
    begun = time.monotonic()
    say("cross-building the native code for arm64 (about 2 min on two cores)")
    # Always the same path, which the lock keeps to one build, for the sources too: a compiler's
    # cache hits only then.
    work = folder.parent / "work"
    shutil.rmtree(work, ignore_errors=True)
    result, tree = work / "result", work / "tree"
    result.mkdir(parents=True)
    for path in sources():
        copy = tree / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    try:
        toolchain = prepare(work, sysroot)
        for name, source in (
            ("tests", "tests/native"),
            ("agent", "agent"),
            ("host", "kernels/host"),
        ):
            compile_one(tree / source, work / name, toolchain, sysroot, f"{source} for arm64")
            for pattern in ("native_tests", "_*.so"):
                for path in (work / name).glob(pattern):
                    shutil.copy(path, result)
        if len(list(result.iterdir())) != 3:
            raise HarnessError(f"the build for arm64 left {sorted(result.iterdir())}")
        result.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say(f"built for arm64 in {time.monotonic() - begun:.0f} s")


def prepare(work: Path, sysroot: Path) -> Path:
    """Writes the toolchain file, and a python that is the sysroot's under the emulator."""
    run(
        [str(uv()), "pip", "install", "--quiet", "--target", str(work / "nanobind"), nanobind()], ""
    )
    interpreter = next(sysroot.glob("usr/bin/python3.[0-9]*"))
    python = work / "python3"
    python.write_text(
        f"#!/bin/sh\nPYTHONPATH={work / 'nanobind'} exec qemu-aarch64-static -L {sysroot} "
        f'{interpreter} "$@"\n'
    )
    python.chmod(0o755)
    toolchain = work / "toolchain.cmake"
    toolchain.write_text(
        TOOLCHAIN.format(
            triplet=TRIPLET, sysroot=sysroot, python=python, nanobind=work / "nanobind"
        )
    )
    return toolchain


def compile_one(source: Path, build: Path, toolchain: Path, sysroot: Path, what: str) -> None:
    options = [f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", "-DCMAKE_BUILD_TYPE=Release"]
    options.append(f"-DLEFT_OUT={LEFT_OUT}")
    options.append(f"-DPython_ROOT_DIR={sysroot / 'usr'}")
    if shutil.which("ccache"):
        options.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    environment = {
        "PKG_CONFIG_LIBDIR": str(sysroot / "usr" / "lib" / TRIPLET / "pkgconfig"),
        "PKG_CONFIG_SYSROOT_DIR": str(sysroot),
        "CCACHE_DIR": str(cache() / "ccache"),
        "CCACHE_MAXSIZE": "2G",
    }
    configure: Sequence[str] = ["cmake", "-S", str(source), "-B", str(build), "-G", "Ninja"]
    run([*configure, *options], f"configuring {what}", environment)
    parallel = str(os.cpu_count() or 1)
    run(["cmake", "--build", str(build), "-j", parallel], f"building {what}", environment)
