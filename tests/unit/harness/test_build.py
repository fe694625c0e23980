"""Programs are built once for each content, and what is missing is named; with the real Go."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import build
from harness.process import HarnessError

TESTS = Path(__file__).resolve().parents[2]
BOUND_S = 120.0
MAIN = 'package main\n\nimport "fmt"\n\nfunc main() { fmt.Println("built") }\n'


def program_set(folder: Path) -> build.ProgramSet:
    folder.mkdir(exist_ok=True)
    (folder / "go.mod").write_text("module example.invalid/hello\n\ngo 1.24\n")
    (folder / "go.sum").write_text("")
    (folder / "main.go").write_text(MAIN)
    return build.ProgramSet("hello", folder, {"hello": "."}, "-s -w", "", expected_s=60)


def test_the_key_changes_with_everything_that_the_programs_depend_on(tmp_path: Path) -> None:
    first = program_set(tmp_path / "hello")
    keys = {build.key(first)}
    (first.module / "go.sum").write_text("other\n")
    keys.add(build.key(first))
    keys.add(build.key(build.ProgramSet("hello", first.module, {"hello": "."}, "-s", "", 60)))
    keys.add(build.key(build.ProgramSet("hello", first.module, {"hello": "."}, "-s -w", "t", 60)))
    assert len(keys) == 4


BUILD = """
import sys
from pathlib import Path
from harness import build
build.SETS["hello"] = build.ProgramSet("hello", Path(sys.argv[1]), {"hello": "."}, "-s -w", "", 60)
print(build.programs("hello")["hello"])
"""


def test_two_starts_at_once_build_once(tmp_path: Path) -> None:
    module = program_set(tmp_path / "hello").module
    environ = {**os.environ, "PYTHONPATH": str(TESTS), "EPFABRIC_CACHE": str(tmp_path / "cache")}
    starts = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD, str(module)],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [start.communicate(timeout=BOUND_S) for start in starts]
    assert [start.returncode for start in starts] == [0, 0], said
    assert len({out for out, _ in said}) == 1
    assert sum(err.count("building hello") for _, err in said) == 1
    text = subprocess.run([said[0][0].strip()], capture_output=True, text=True, check=True).stdout
    assert text == "built\n"
    left = {path.name.partition("-")[0] for path in (tmp_path / "cache/bin").iterdir()}
    assert left == {"hello", "hello.lock"}


def test_a_build_that_fails_shows_the_compiler_and_leaves_nothing(tmp_path: Path) -> None:
    wanted = program_set(tmp_path / "hello")
    (wanted.module / "main.go").write_text("package main\n\nfunc main() { undefined() }\n")
    cache = tmp_path / "bin"
    cache.mkdir()
    with pytest.raises(HarnessError, match="undefined: undefined"):
        build.build(wanted, cache / "hello-1")
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (None, "no `go` on PATH: install Go 1.26"),
        ("echo go version go1.19.8 linux/amd64", r"go1.19.8.*Go 1.26 or newer is needed"),
    ],
)
def test_a_go_that_is_missing_or_old_is_named(
    tmp_path: Path, script: str | None, complaint: str
) -> None:
    if script is not None:
        (tmp_path / "go").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "go").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "harness.build", "prometheus"],
        env={"PYTHONPATH": str(TESTS), "PATH": str(tmp_path), "EPFABRIC_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == 1
    assert re.search(complaint, done.stderr), done.stderr
