"""The compiler's cache never serves code that was made of other text."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from epfabric.cuda import compiler
from epfabric.cuda.closure import closure, digest

SOURCE = '#include "a.h"\nextern "C" __global__ void f(int* x) { *x = A; }\n'


@pytest.fixture
def headers(tmp_path: Path) -> Path:
    """a.h includes deep/b.h, which includes its neighbour c.h and a header of the compiler."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.h").write_text("#pragma once\n#include <deep/b.h>\n#define A B\n")
    (tmp_path / "deep/b.h").write_text('#pragma once\n # include "c.h"\n#include <cstdint>\n')
    (tmp_path / "deep/c.h").write_text('#pragma once\n#include "b.h"\n#define B 1\n')
    return tmp_path


def key(headers: Path, source: str = SOURCE, options: tuple[str, ...] = ("sm_90",)) -> str:
    return digest(source, closure(source, [headers]), options)


def test_every_header_is_found_once_also_in_a_circle(headers: Path) -> None:
    names = {path.name for path in closure(SOURCE, [headers])}
    assert names == {"a.h", "b.h", "c.h"}


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "deep/c.h").write_text("#define B 2\n"),
        lambda folder: (folder / "a.h").write_text("#define A 1\n"),
    ],
    ids=["the deepest header", "the first header"],
)
def test_a_changed_header_changes_the_key(headers: Path, change: Callable[[Path], object]) -> None:
    before = key(headers)
    assert key(headers) == before
    change(headers)
    assert key(headers) != before


def test_source_and_options_change_the_key_and_do_not_run_together(headers: Path) -> None:
    keys = {
        key(headers),
        key(headers, SOURCE + " "),
        key(headers, options=("sm_100",)),
        key(headers, options=("sm_90", "")),
        key(headers, options=("sm_9", "0")),
    }
    assert len(keys) == 5


def test_the_projects_own_headers_are_in_the_key() -> None:
    source = '#include "epfabric/rank.cuh"\n'
    names = {path.name for path in closure(source, [compiler.INCLUDE])}
    device = {"rank.cuh", "push.cuh", "platform_gpu.cuh"}
    assert names == device | {"layout.h", "fifo.h", "command.h", "platform.h"}


KERNEL = '#include "epfabric/rank.cuh"\nextern "C" __global__ void f(int* x) { *x = 1; }\n'


def test_a_kernel_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPFABRIC_CACHE", str(tmp_path))
    code = compiler.cubin(KERNEL, "f.cu", "sm_90")
    assert code.startswith(b"\x7fELF")
    (kept,) = compiler.folder().iterdir()
    kept.write_bytes(b"what is kept is what is used")
    assert compiler.cubin(KERNEL, "f.cu", "sm_90") == b"what is kept is what is used"
    assert compiler.cubin(KERNEL, "f.cu", "sm_80").startswith(b"\x7fELF")
    assert compiler.cubin(KERNEL, "f.cu", "sm_90", ("X=1",)) == code
    assert len(list(compiler.folder().iterdir())) == 3


def test_a_cache_that_cannot_be_written_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EPFABRIC_CACHE", str(tmp_path / "file"))
    assert compiler.cubin(KERNEL, "f.cu", "sm_90").startswith(b"\x7fELF")


def test_a_source_with_a_fault_is_named_with_the_compilers_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPFABRIC_CACHE", str(tmp_path))
    with pytest.raises(compiler.CompileError, match=r"bad\.cu.*sm_90(.|\n)*expected"):
        compiler.cubin("int x = ;", "bad.cu", "sm_90")
    assert not compiler.folder().exists()


COMPILE_AT_ONCE = """
import threading
from epfabric.cuda import compiler

begin, codes = threading.Barrier(2), []
def compile():
    begin.wait()
    codes.append(compiler.cubin('extern "C" __global__ void f() {}', "f.cu", "sm_90"))
threads = [threading.Thread(target=compile) for _ in range(2)]
for one in threads: one.start()
for one in threads: one.join()
assert len(codes) == 2 and codes[0] == codes[1], codes
"""


def test_ranks_that_are_threads_may_compile_at_once(tmp_path: Path) -> None:
    """In a process of its own, that has imported nothing of the compiler yet."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILE_AT_ONCE],
        env={**os.environ, "EPFABRIC_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("kernels/*.cubin"))) == 1
